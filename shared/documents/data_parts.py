"""Parts of a record's training data."""

from pydantic import Field

from shared.documents.base import Document
from shared.truncation import WHOLE, Truncation


class DataDispatch(Document):
    """One entry of `DBRecordData.dispatches`; see `shared.tokens.record_tree.TreeDispatch`."""

    id: str
    turn: int
    advantage: float
    temperature: float
    trained: bool
    truncation: Truncation = Field(
        WHOLE,
        exclude_if=lambda one: (
            one.keeps_all
        ),  # earlier versions refuse the field, and would train the whole distribution
    )


class DataClaim(Document):
    """The borrower of a record's data: a trainer generation and its step."""

    trainer_generation: int
    step: int
