"""The lease of a device that engines and a trainer use by turns: its holder, and the engines that occupy it otherwise.

    FREE ──claim──▶ WANTED ──take, once every occupant sleeps──▶ HELD ──release──▶ FREE
                      └───────── `free_at` passes on the server's clock ─────────▶ as FREE

`attempt` grows with every claim: it is the fencing token of the holder's writes and of the occupants' confirmations.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from shared.documents.base import Document
from shared.documents.states import LeaseKind, LeaseState


class Occupant(BaseModel):
    """A keeper whose engine uses the device while it is not leased. After `free_at` it counts as dead and is not waited for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str  # of one process: a restarted keeper is another occupant
    service: str  # URL of its engine
    asleep_for: int | None = None  # attempt for which its engine has released its memory; None: the engine occupies it
    free_at: datetime


class Lease(Document):
    """One device, or several that are leased together."""

    collection: ClassVar[str] = "leases"
    id: str = Field(alias="_id")  # kind:device
    kind: LeaseKind
    device: str
    capacity: int = 1  # holders at a time
    attempt: int = 0
    state: LeaseState = LeaseState.FREE
    holder: str | None = None
    free_at: datetime | None = None  # end of the holder's lease, on the server's clock
    occupants: list[Occupant] = []
    created_at: datetime | None = None

    def occupant(self, occupant: str) -> Occupant | None:
        return next((one for one in self.occupants if one.id == occupant), None)


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """A holder's claim; every write of the holder names it. `holder` is unique to the claim."""

    lease: str
    holder: str
    attempt: int
