"""What the HTTP side needs of an engine, whichever it is.

All methods run on the event loop. Weights' errors are ApiErrors in the weights' shape (`bad_weights`), with nothing changed
unless the method says otherwise.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sampler.core.rendering.template import ChatTemplate
from sampler.engine.api.answers import ServedModel
from sampler.engine.api.generation import Limits, ServedSequence

PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A torch.distributed group for weights, and this engine's first rank in it."""

    address: str
    port: int
    rank: int
    size: int
    name: str
    backend: str


@dataclass(frozen=True, slots=True)
class Announced:
    """The tensors that a request announces. `dtypes`: torch's names. `flattened`: they come as one tensor of bytes."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    flattened: bool


# 31 methods: what the routes need, each of one line
class ServedEngine(Protocol):
    """`paused`: generation is paused. `failure`: why the engine cannot go on."""

    model: ServedModel
    limits: Limits
    chat_template: ChatTemplate | None

    @property
    def weight_version(self) -> str: ...

    @property
    def paused(self) -> bool: ...

    @property
    def healthy(self) -> bool:
        """Not paused, and able to step."""

    @property
    def failure(self) -> BaseException | None: ...

    def start(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def stop(self) -> None:
        """Called in a thread."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str: ...

    def load(self) -> dict[str, int]:
        """`running` and `waiting` requests, and the `tokens` that running ones hold."""

    def throughput(self) -> float:
        """Tokens per second since the last call."""

    def own_metrics(self) -> str:
        """Figures under names of its own for `/metrics`, in Prometheus' text format; empty: none."""

    async def submit(self, generations: list[ServedSequence]) -> None:
        """Raises ApiError for a request id that is being served, and for images that the engine reads before it answers."""

    async def retire(self, generations: list[ServedSequence]) -> None:
        """Forget sequences whose reply is sent or whose client is gone, and end those still running."""

    async def abort(self, rid: str | None, *, abort_all: bool) -> None:
        """End all requests, or request `rid` and those whose id begins with it. An unknown id ends none."""

    async def pause(self, mode: PauseMode) -> None: ...

    async def proceed(self) -> None: ...

    async def flush(self) -> bool:
        """Forget cached prefixes; False, without effect, while sequences hold the cache."""

    async def update_weights(self, model_path: str, version: str | None, *, flush_cache: bool, abort_all: bool) -> str:
        """Returns SGLang's message, as do the methods below."""

    async def set_version(self, version: str) -> None: ...

    async def join_group(self, place: GroupPlace) -> str: ...

    async def leave_group(self, name: str) -> str: ...

    async def begin_update(self) -> str: ...

    async def end_update(self) -> str: ...

    async def update_from_group(
        self, group: str, what: Announced, version: str | None, *, flush_cache: bool
    ) -> str: ...

    async def weights_by_name(self, name: str, rows: int) -> list[Any] | None:
        """The first `rows` of a parameter as float32; None if there is no such parameter, or its memory is free."""

    async def checksum(self) -> str:
        """Of all weights: equal in two engines of a kind, or after two updates of one, exactly if the weights are."""

    def adapters(self) -> dict[str, str]:
        """Those that requests may name, path by name."""

    async def load_adapter(self, name: str, path: str) -> None:
        """Raises ApiError in the adapters' shape; so does the next one."""

    async def unload_adapter(self, name: str) -> None:
        """No request gets it from now on. Returns once no request holds it."""

    async def release_memory(self, tags: list[str] | None) -> None: ...

    async def resume_memory(self, tags: list[str] | None) -> None: ...
