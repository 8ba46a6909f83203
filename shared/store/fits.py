"""What PyMongo and the server say of a document that cannot be stored, as one error: `DoesNotFit`.

A document is made of what came from outside, so that each of these may happen in any verb; none says anything about the database.
"""

from collections.abc import Mapping
from typing import Any

from bson.errors import BSONError
from pymongo.errors import BulkWriteError, OperationFailure

from shared.errors import DoesNotFit

# Raised before anything is sent: too large; no such type, key or character; an integer above 64 bits; too deep; half a character.
_REFUSED_HERE = (BSONError, OverflowError, RecursionError, UnicodeEncodeError)
# Of the server: Overflow (too deep), BSONObjectTooLarge, and the two of an update whose result is too large.
_REFUSED_THERE = frozenset({15, 10334, 17419, 17420})

UNFIT = (*_REFUSED_HERE, OperationFailure)


def raise_unfit(verb: str, exc: Exception) -> None:
    """Raises DoesNotFit if that is what `exc`, one of UNFIT, says."""
    if isinstance(exc, OperationFailure) and _codes(exc).isdisjoint(_REFUSED_THERE):
        return
    raise DoesNotFit(f"{verb}: MongoDB takes no such document: {type(exc).__name__}: {exc}") from exc


def _codes(exc: OperationFailure) -> set[Any]:
    details = exc.details or {}
    errors: list[Mapping[str, Any]] = details.get("writeErrors", []) if isinstance(exc, BulkWriteError) else []
    return {exc.code, *(error.get("code") for error in errors)}
