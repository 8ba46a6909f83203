"""Parts of a record's training data."""

from shared.documents.base import Document


class DataDispatch(Document):
    """One entry of `DBRecordData.dispatches`; see `shared.tokens.record_tree.TreeDispatch`."""

    id: str
    turn: int
    advantage: float
    temperature: float
    trained: bool


class DataClaim(Document):
    """The borrower of a record's data: a trainer generation and its step."""

    trainer_generation: int
    step: int
