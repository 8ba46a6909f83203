"""What is stored of the requests and sessions of an agent that plays through the gateway."""

from datetime import datetime

from pydantic import Field

from shared.documents.base import Document
from shared.documents.states import Termination


class ClientRequest(Document):
    """The request of an agent that a dispatch answers. `identity`: equal for the same request sent again. `cause`: why it was
    given to its thread, one of `MatchCause`. `overridden`: its members that changed nothing, by path. `again`: the client said
    that it had sent it before. `without_calls`: it has tools, and allows no call of them. `requested_by`: the gateway
    process that asked; None: the sampler that plays the episode."""

    identity: str
    cause: str
    overridden: list[str] = []
    again: bool = False
    without_calls: bool = Field(False, exclude_if=lambda value: not value)  # earlier versions refuse the field
    requested_by: str | None = None


class SessionEnd(Document):
    """How an agent that runs elsewhere ended its attempt. `error`: it failed, and the attempt has no score. `given_back`: it
    did not play to the end, through no fault."""

    score: float | None = None
    answer: str | None = None
    error: str | None = None
    given_back: bool = False


class MetLimit(Document):
    """A request was refused because of a limit of the episode. `turn`: the number that it would have had; a reply to that turn
    or a later one shows that the agent went on within the limit."""

    termination: Termination
    turn: int


class AgentSession(Document):
    """An attempt of an agent that runs elsewhere. `key_hash`: of the attempt's key, by which any gateway process finds it.
    `score`: the one posted last. `limit`: the one met last. `end`: what the first request to end it said. `replayed`: how often
    each process told its client an earlier reply once more; a process may stand there several times."""

    key_hash: str
    score: float | None = None
    limit: MetLimit | None = None
    end: SessionEnd | None = None
    ended_at: datetime | None = None
    replayed: dict[str, int] = Field({}, exclude_if=lambda replayed: not replayed)  # earlier versions refuse the field
