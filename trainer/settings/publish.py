"""How the weights of each step reach the engines."""

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from shared.configuration.sections import Section

if TYPE_CHECKING:
    import torch

Positive = Annotated[int, Field(gt=0)]
BUCKET_BYTES = 256 << 20  # additional memory of sender and engine


@dataclass(frozen=True, slots=True)
class BroadcastSettings:
    """`address`: of this machine, for engines; `port` 0: a free port per offer; `device`: of the sent tensors."""

    address: str
    port: int
    backend: Literal["gloo", "nccl"]
    device: str
    join_s: float
    limit_s: float
    bucket_bytes: int = BUCKET_BYTES


class TransportSettings(Section):
    """How engines receive published weights."""

    weight_transport: Literal["disk", "broadcast", "peers"] = Field(
        "disk",
        description="How engines get published weights: from disk; those that can by a broadcast; or in chunks from this machine "
        "and from each other, where keepers do not see this disk (peers). Every version is on disk in any case; "
        "docs/train/publishing.md says when which is better.",
    )
    broadcast_address: str | None = Field(
        None, description="Address at which engines and keepers reach this machine. None: its host name."
    )
    broadcast_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Where engines meet for a broadcast (they also use others), or keepers pull from (peers). 0: a free one.",
    )
    broadcast_join_s: float = Field(10.0, gt=0, description="Longest time that an offer to engines stays open.")
    broadcast_limit_s: float = Field(
        120.0,
        gt=0,
        description="Longest time of one broadcast, and that a trainer waits at its end for keepers that still pull (peers).",
    )

    @property
    def address(self) -> str:
        return self.broadcast_address or socket.gethostname()

    def broadcast(self, device: "torch.device") -> BroadcastSettings | None:
        """None: there is none."""
        if self.weight_transport != "broadcast":
            return None
        backend: Literal["gloo", "nccl"] = "nccl" if device.type == "cuda" else "gloo"
        return BroadcastSettings(
            address=self.address,
            port=self.broadcast_port,
            backend=backend,
            device=str(device) if backend == "nccl" else "cpu",
            join_s=self.broadcast_join_s,
            limit_s=self.broadcast_limit_s,
        )


class PublishSettings(Section):
    """The form in which each version of the weights is published, and its way to the engines."""

    publish_mode: Literal["full", "delta", "adapter"] = Field(
        "full",
        description="Every version as a complete directory; as the changed bytes with a complete one now and then (delta); or as "
        "the adapter alone, which engines' keepers merge (adapter: needs lora_rank). docs/train/publishing.md says when that "
        "is less.",
    )
    full_every: Positive = Field(
        20, description="publish_mode delta: every so many versions is a complete directory too."
    )
    publish_dtype: Literal["bfloat16", "float32", "float64"] | None = Field(
        None, description="Type of published weights, which engines serve. None: the parameters' type."
    )
    keep_versions: Annotated[int, Field(ge=2)] = Field(
        4,
        description="Published versions to keep on disk, with what they are put together from; engines may still be loading "
        "the last ones.",
    )
    transport: TransportSettings = TransportSettings()

    @model_validator(mode="after")
    def what_is_broadcast_is_complete(self) -> Self:
        if self.transport.weight_transport == "broadcast" and self.publish_mode != "full":
            raise ValueError(
                f"weight_transport broadcast sends complete files; publish_mode is {self.publish_mode}, expected full"
            )
        return self
