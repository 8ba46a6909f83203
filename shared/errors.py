"""Every error class of the project, as one tree.

TandemError
├── ConfigError          the user's input is wrong: the message gives found, expected and remedy
│   └── FeedbackRefused      feedback for an episode that does not wait for it
├── OwnCodeFailed        a user's sampler class is wrong: the message names its line
├── DataError            a document or file contradicts itself
│   └── MalformedDocument    a stored document does not fit its model: set it aside, continue with the others
├── LeaseLost            another worker owns this slot now: drop the work, never retry the write
├── IllegalMove          a document cannot move to the requested state
├── DoesNotFit           MongoDB rejects the document: too large, too deep, or with unsupported values
├── StoreUnavailable     the database did not answer in time
└── StoreRefused         the database no longer lets this user read or write
"""

from typing import Literal

from shared.outside_text import MAX_ERROR_CHARS, clipped

FeedbackRefusal = Literal["invalid", "unknown", "playing", "late", "scored", "failed"]


class TandemError(Exception):
    """Base of all errors of this project. Its message is bounded, including quoted external text."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clipped(message, MAX_ERROR_CHARS))


class ConfigError(TandemError, ValueError):
    """Configuration, flags or a data file are wrong; the message gives the remedy."""


class FeedbackRefused(ConfigError):
    """Feedback changes nothing: its episode is unknown or does not wait for it; the message says what it found."""

    def __init__(self, why: FeedbackRefusal, message: str) -> None:
        super().__init__(message)
        self.why = why


class OwnCodeFailed(TandemError):
    """A user's class raised an error other than an infrastructure failure, or returned a wrong value."""


class DataError(TandemError):
    """Stored data or a file contradicts itself (a checksum, a length, a missing document)."""


class MalformedDocument(DataError):
    """A stored document that does not fit its model; the message names its collection, `_id` and field."""

    def __init__(self, collection: str, document_id: str, problem: str) -> None:
        super().__init__(f"{collection} {document_id}: {problem}")
        self.collection, self.document_id = collection, document_id


class LeaseLost(TandemError):
    """Another worker owns this document now. Drop the work; a retry can never succeed."""


class IllegalMove(TandemError):
    """The requested move between two states of a document is not legal."""


class DoesNotFit(TandemError):
    """MongoDB rejects the document: too large, too deep, or with values that BSON lacks. A retry can never succeed."""


class StoreUnavailable(TandemError):
    """MongoDB did not answer in time; the connection string is in the message."""


class StoreRefused(TandemError):
    """The database revoked this user's rights during the run; the process ends."""


def one_by_one(group: BaseExceptionGroup[TandemError]) -> list[TandemError]:
    """The errors of a group, including nested groups."""
    flat: list[TandemError] = []
    for exc in group.exceptions:
        flat += one_by_one(exc) if isinstance(exc, BaseExceptionGroup) else [exc]
    return flat
