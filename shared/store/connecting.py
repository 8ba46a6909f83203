"""Connects to MongoDB. A wrong connection string, server or user gives a one-sentence error without secrets."""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, ConnectionFailure, OperationFailure

from shared.errors import ConfigError, StoreRefused, StoreUnavailable
from shared.redaction import redacted, shown
from shared.store.cancellation import let_cancellations_arrive
from shared.store.hints import hint

log = logging.getLogger(__name__)

# The server's message quotes the command, which contains documents.
COMMAND = re.compile(r"(to execute command \{ \w+: [^,]*),.*", re.DOTALL)
# Unauthorized, AuthenticationFailed, UserNotFound, MechanismUnavailable; Atlas uses 8000 for all of them.
REFUSALS = frozenset({13, 18, 11, 334, 8000})
DIFFERS_IN_CASE_ALONE = 13297  # DatabaseDifferCase
SCHEMES = ("mongodb://", "mongodb+srv://")
DRIVERS_DETAILS = " (configured timeouts:"  # then come hundreds of characters of the driver's own state


def connect(connection_string: str, timeout_s: float) -> AsyncMongoClient[dict[str, Any]]:
    """Create a client; sends nothing yet. Raises ConfigError."""
    if not connection_string.startswith(SCHEMES):
        raise ConfigError(
            f"db_connection_string does not begin with {' or '.join(SCHEMES)}; expected mongodb://HOST:PORT/"
            if connection_string.strip()
            else "db_connection_string is blank; expected mongodb://HOST:PORT/"
        )
    let_cancellations_arrive()
    try:
        with warnings.catch_warnings(record=True) as warned:  # about options that the driver ignores
            warnings.simplefilter("always")
            client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
                connection_string,
                serverSelectionTimeoutMS=round(timeout_s * 1000),
                connectTimeoutMS=round(timeout_s * 1000),
                socketTimeoutMS=60_000,
                retryWrites=False,  # verbs retry themselves; the driver's retries fail when a standalone server restarts
                appname="tandem",
            )
    except (ConfigurationError, ValueError, TypeError, OSError) as exc:  # OSError: a certificate file
        problem = redacted(str(exc), connection_string)
        raise ConfigError(f"db_connection_string: {problem}; expected mongodb://HOST:PORT/") from None
    for warning in warned:
        log.warning("db_connection_string: %s", redacted(str(warning.message), connection_string))
    return client


@contextmanager
def first_contact(connection_string: str, run: str, timeout_s: float) -> Iterator[None]:
    """Wrap the first commands. Raises StoreUnavailable if no server answers, ConfigError if it refuses the login."""
    where = shown(connection_string)
    try:
        yield
    except ConnectionFailure as exc:
        problem = str(exc).partition(DRIVERS_DETAILS)[0]
        raise StoreUnavailable(
            f"MongoDB at {where} did not answer within {timeout_s:g} s: {redacted(problem, connection_string)}. "
            f"{hint(problem, connection_string)}"
        ) from exc
    except ConfigurationError as exc:
        raise ConfigError(f"db_connection_string: {redacted(str(exc), connection_string)}") from exc
    except (OperationFailure, StoreRefused) as exc:
        failure = exc.__cause__ if isinstance(exc, StoreRefused) else exc
        if isinstance(failure, OperationFailure) and failure.code == DIFFERS_IN_CASE_ALONE:
            there = re.search(r"already have: \[([^\]]*)\]", str(failure))
            raise ConfigError(
                f"run {run}: the server at {where} has {f'run {there[1]}' if there else 'one'}, whose name differs in case "
                "alone, and to MongoDB both are one database; expected that name, or another one"
            ) from failure
        if not isinstance(failure, OperationFailure) or failure.code not in REFUSALS:
            raise
        raise ConfigError(f"MongoDB at {where}, run {run}: {refusal(failure, connection_string)}") from failure


def refusal(exc: OperationFailure, *connection_strings: str) -> str:
    """The server's refusal of a command, and the remedy."""
    problem = redacted(str((exc.details or {}).get("errmsg", exc)), *connection_strings)
    problem = COMMAND.sub(r"\1, ... }", problem)
    return (
        f"refused: {problem.rstrip('.')}; expected a db_connection_string with user, password and authSource of a user "
        "who may read and write this database"
    )
