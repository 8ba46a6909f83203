"""The offer of a published version over the network, and its recipients: part of the `policy_versions` document."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.documents.states import OfferState


class Joined(BaseModel):
    """An engine that joined a broadcast; `ranks`: its number of processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    service: str
    ranks: int


class BroadcastOffer(BaseModel):
    """A broadcast of a version: a torch.distributed group in which the sender has rank 0.

    Engines have the following ranks, in the order of `joined`. The bytes are sent in buckets (`shared.weights.buckets`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    port: int
    group: str
    backend: Literal["gloo", "nccl"]
    bucket_bytes: int
    join_s: float  # maximum time the offer is open
    limit_s: float  # time limit of the broadcast
    state: OfferState = OfferState.OPEN
    joined: list[Joined] = []

    @property
    def world_size(self) -> int:
        return 1 + sum(one.ranks for one in self.joined)

    def rank_of(self, service: str) -> int | None:
        """The first rank of an engine; None: it has not joined."""
        rank = 1
        for one in self.joined:
            if one.service == service:
                return rank
            rank += one.ranks
        return None
