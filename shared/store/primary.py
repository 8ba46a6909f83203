"""Waits for the primary of a replica set at the start, as the verbs do later: an election takes seconds."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import ConnectionFailure

from shared.errors import ConfigError, StoreUnavailable
from shared.redaction import shown
from shared.store.retry import PATIENCE_S

log = logging.getLogger(__name__)

POLL_S = 0.5
_SILENT = ("Unknown", "PossiblePrimary")  # PyMongo's names for members that have not answered


async def until_primary(client: AsyncMongoClient[dict[str, Any]], connection_string: str) -> None:
    """Return once the server takes writes. While its replica set has no primary, wait, for `PATIENCE_S` at most.

    Raises ConnectionFailure if no server answers, StoreUnavailable if none became primary, and ConfigError for a connection
    string that reaches only a secondary.
    """
    where, deadline, is_logged = shown(connection_string), time.monotonic() + PATIENCE_S, False
    while True:
        try:
            hello = await client.admin.command("hello")
        except ConnectionFailure:
            if not _members_answer(client):
                raise
        else:
            if hello["isWritablePrimary"]:
                return
            _require_whole_set(client, where, hello)
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"the replica set of MongoDB at {where} has had no primary for {PATIENCE_S:g} s; members: {_members(client)}; "
                "expected a majority of its members to run and to reach each other"
            )
        if not is_logged:
            is_logged = True
            log.warning("the replica set at %s has no primary: waiting for one, for %g s at most", where, PATIENCE_S)
        await asyncio.sleep(POLL_S)


def _require_whole_set(client: AsyncMongoClient[dict[str, Any]], where: str, hello: Mapping[str, Any]) -> None:
    """`hello`: the answer of a member that is no primary. A client of one member never reaches the primary that there is."""
    if client.topology_description.topology_type_name == "Single" and hello.get("primary"):
        raise ConfigError(
            f"MongoDB at {where} is a member of replica set {hello.get('setName')!r} that is not its primary; "
            "expected a connection string that names every member, with ?replicaSet=NAME and without directConnection"
        )


def _members_answer(client: AsyncMongoClient[dict[str, Any]]) -> bool:
    """Without a primary. PyMongo forgets a member at its first error: the others say whether there is a set."""
    described = client.topology_description
    servers = described.server_descriptions().values()
    return described.topology_type_name != "Single" and any(one.server_type_name not in _SILENT for one in servers)


def _members(client: AsyncMongoClient[dict[str, Any]]) -> str:
    servers = client.topology_description.server_descriptions().items()
    return ", ".join(f"{host}:{port} {one.server_type_name}" for (host, port), one in servers)
