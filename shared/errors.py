"""Every error this project raises on purpose, as one tree.

TandemError
├── ConfigError          the user's input is wrong: say what was found, what was expected, what to do
├── OwnCodeFailed        a user's own sampler is wrong: the message names the line of it
├── DataError            a document or file contradicts itself
│   └── MalformedDocument    a stored document does not fit its model: set this one aside, go on with the others
├── LeaseLost            another worker owns this slot now: drop the work, never retry the write
├── IllegalMove          a document was asked for a state it cannot reach
├── DoesNotFit           a document is larger or deeper than MongoDB takes, or holds what it cannot
├── StoreUnavailable     the database did not answer in time
└── StoreRefused         the database no longer lets this user read or write
"""

from shared.outside_text import MAX_ERROR_CHARS, clipped


class TandemError(Exception):
    """Base of everything this project raises on purpose. Its message is bounded, also where it quotes texts from outside."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clipped(message, MAX_ERROR_CHARS))


class ConfigError(TandemError, ValueError):
    """Configuration, flags or a data file are wrong; the message says how to mend them."""


class OwnCodeFailed(TandemError):
    """A user's own class raised what is no infrastructure failure, or returned something else than it should."""


class DataError(TandemError):
    """Stored data or a file contradicts itself (a checksum, a length, a missing document)."""


class MalformedDocument(DataError):
    """A stored document that a person or a program has spoilt; the message names its collection, `_id` and field."""

    def __init__(self, collection: str, document_id: str, problem: str) -> None:
        super().__init__(f"{collection} {document_id}: {problem}")
        self.collection, self.document_id = collection, document_id


class LeaseLost(TandemError):
    """Another worker owns this document now. Drop the work; a retry can never succeed."""


class IllegalMove(TandemError):
    """A document was asked to move between states that are not connected."""


class DoesNotFit(TandemError):
    """MongoDB takes no such document: too large, too deep, or with values that BSON lacks. A retry can never succeed."""


class StoreUnavailable(TandemError):
    """MongoDB did not answer in time; the connection string is in the message."""


class StoreRefused(TandemError):
    """The database lets this user no longer do what it did before: the process ends, and says so."""


def one_by_one(group: BaseExceptionGroup[TandemError]) -> list[TandemError]:
    """The errors of a group and of the groups in it."""
    found: list[TandemError] = []
    for exc in group.exceptions:
        found += one_by_one(exc) if isinstance(exc, BaseExceptionGroup) else [exc]
    return found
