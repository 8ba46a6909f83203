"""A published version on offer over the network, and who takes it: part of its `policy_versions` document."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.documents.states import OfferState


class Joined(BaseModel):
    """An engine that takes part in a broadcast; `ranks`: processes of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    service: str
    ranks: int


class BroadcastOffer(BaseModel):
    """Where and how a version may be had over the network as well: a torch.distributed group in which the sender has rank 0.

    Those who joined have the ranks behind it, in the order of `joined`. The bytes are sent in buckets (`shared.weights.buckets`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    port: int
    group: str
    backend: Literal["gloo", "nccl"]
    bucket_bytes: int
    join_s: float  # how long the offer is open at most
    limit_s: float  # how long the broadcast may take
    state: OfferState = OfferState.OPEN
    joined: list[Joined] = []

    @property
    def world_size(self) -> int:
        return 1 + sum(one.ranks for one in self.joined)

    def rank_of(self, service: str) -> int | None:
        """The first rank of an engine; None: it is not in."""
        rank = 1
        for one in self.joined:
            if one.service == service:
                return rank
            rank += one.ranks
        return None
