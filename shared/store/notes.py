"""Verbs on what people write while they read a run: notes on episodes, saved views. Every list of them is bounded."""

from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.notes import Note, SavedView
from shared.store.indexes import add_index
from shared.store.pipelines import NOW, insert_once, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]
MOST_NOTES = 200  # of an episode, and of a run's newest, that are read
MOST_VIEWS = 200
MOST_SEARCHED = 5_000  # notes of a run, the newest, in which a text is looked for
PRESENT: Document = {"removed": False}


@survives_outages
class NoteVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._notes = database[Note.collection]
        self._views = database[SavedView.collection]

    async def ensure_indexes(self) -> None:
        await add_index(self._notes, [("record", 1), ("created_at", 1)], name="of an episode")
        await add_index(self._notes, [("created_at", 1)], name="newest notes")

    async def add(self, note: Note) -> None:
        """Idempotent by the note's id."""
        await self._notes.update_one({"_id": note.id}, insert_once(note.to_mongo()), upsert=True)

    async def remove(self, note_id: str) -> bool:
        """Return False if it is not there."""
        changed = await self._notes.update_one({"_id": note_id, **PRESENT}, {"$set": {"removed": True, "text": ""}})
        return changed.modified_count == 1

    async def of(self, record: str) -> list[Note]:
        """The oldest first, `MOST_NOTES` at most."""
        cursor = self._notes.find({"record": record, **PRESENT}).sort([("created_at", 1)]).limit(MOST_NOTES)
        return [Note.from_mongo(document) async for document in cursor]

    async def newest(self) -> list[Note]:
        """Of the whole run, the newest first, `MOST_NOTES` at most."""
        cursor = self._notes.find(PRESENT).sort([("created_at", -1)]).limit(MOST_NOTES)
        return [Note.from_mongo(document) async for document in cursor]

    async def records_with(self, text: str) -> list[str]:
        """Episodes with a note that contains the text, in upper or lower case; "": with any note."""
        newest = self._notes.find(PRESENT, {"record": 1, "text": 1}).sort([("created_at", -1)]).limit(MOST_SEARCHED)
        return sorted({d["record"] async for d in newest if text.casefold() in d["text"].casefold()})

    async def save_view(self, view: SavedView) -> None:
        """The last one of a name is current."""
        values = literals(view.to_mongo()) | {"created_at": NOW}
        await self._views.update_one({"_id": view.id}, [{"$set": values}], upsert=True)

    async def remove_view(self, name: str) -> bool:
        """Return False if it is not there."""
        return (await self._views.delete_one({"_id": name})).deleted_count == 1

    async def views(self) -> Sequence[SavedView]:
        """By name, `MOST_VIEWS` at most."""
        return [SavedView.from_mongo(d) async for d in self._views.find().sort([("_id", 1)]).limit(MOST_VIEWS)]
