"""Maps the errors of PyMongo and the server for a document that cannot be stored to `DoesNotFit`.

Documents contain external content, so any verb may meet these errors. They indicate no fault of the database.
"""

from collections.abc import Mapping
from typing import Any

from bson.errors import BSONError
from pymongo.errors import BulkWriteError, OperationFailure

from shared.errors import DoesNotFit

# Raised before sending: too large; unsupported type, key or character; integer above 64 bits; too deep; lone surrogate.
_REFUSED_HERE = (BSONError, OverflowError, RecursionError, UnicodeEncodeError)
# Raised by the server: Overflow (too deep), BSONObjectTooLarge, and two codes for an update whose result is too large.
_REFUSED_THERE = frozenset({15, 10334, 17419, 17420})

UNFIT = (*_REFUSED_HERE, OperationFailure)


def raise_unfit(verb: str, exc: Exception) -> None:
    """Raise DoesNotFit if `exc`, one of UNFIT, means that the document cannot be stored."""
    if isinstance(exc, OperationFailure) and _codes(exc).isdisjoint(_REFUSED_THERE):
        return
    raise DoesNotFit(f"{verb}: MongoDB rejects the document: {type(exc).__name__}: {exc}") from exc


def _codes(exc: OperationFailure) -> set[Any]:
    details = exc.details or {}
    errors: list[Mapping[str, Any]] = details.get("writeErrors", []) if isinstance(exc, BulkWriteError) else []
    return {exc.code, *(error.get("code") for error in errors)}
