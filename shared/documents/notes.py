"""What people write while they read a run: notes on episodes, and names for addresses of the viewer. No service reads them."""

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from shared.documents.base import Document

MAX_NOTE_CHARS = 4_000
MAX_NAME_CHARS = 120  # of an author, and of a saved view
MAX_PATH_CHARS = 2_000


class Note(Document):
    """`id` is chosen by its writer, so that sending a note twice stores it once."""

    collection: ClassVar[str] = "notes"

    id: str = Field(alias="_id")
    record: str
    text: str
    author: str = ""  # as the person says; nothing checks it
    removed: bool = (
        False  # its text is gone; the document stays, so that a late repetition of the note brings nothing back
    )
    created_at: datetime | None = None


class SavedView(Document):
    """`id`: its name. `path`: behind /runs/RUN, with the parameters of the address."""

    collection: ClassVar[str] = "saved_views"

    id: str = Field(alias="_id")
    path: str
    created_at: datetime | None = None
