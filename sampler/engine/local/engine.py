"""The engine behind the routes: model, tokenizer and scheduler, and the bridge from its thread to asyncio.

Owns the order of a weight update: read and verify the folder in a worker thread, one update at a time, and only then pass the
verified tensors to the scheduler.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import GenerationConfig

from sampler.core.rendering.template import ChatTemplate
from sampler.engine.local.answers import ServedModel
from sampler.engine.local.batching import Batching
from sampler.engine.local.distributed import Announced, GroupError, UpdateGroups, check_fit
from sampler.engine.local.errors import bad_value, bad_weights
from sampler.engine.local.generation import RunningSequence
from sampler.engine.local.occupation import TAGS, Occupation
from sampler.engine.local.protocol import Limits
from sampler.engine.local.runner import EngineSize, LoadedModel, UnsupportedModelError, load
from sampler.engine.local.scheduler import Scheduler, UpdateRefusedError
from sampler.engine.local.weights import by_model_names, copy_into, expect, read_checkpoint
from shared.errors import ConfigError, DataError

log = logging.getLogger(__name__)

REFUSED = (
    "Weights were not updated: sequences that are paused in place would go on over a stale cache. Pause with mode "
    "retract or abort, or send flush_cache=false."
)
ASLEEP = "Weights were not updated: their memory is released. Call /resume_memory_occupation first."
BUSY = "Memory was not released: requests hold the cache. Pause with mode retract or abort first."
STALE = (
    "Still paused: memory is released, or the weights have no values since. Resume it, and update the weights first."
)
STALLED_S = 20.0  # a scheduler without a turn for this long is unhealthy (SGLang's health limit)


class Engine:
    def __init__(self, model_path: Path, loaded: LoadedModel, weight_version: str) -> None:
        self._loaded = loaded
        self._tokenizer = _tokenizer(model_path)
        self.chat_template = _chat_template(model_path)
        self._expected = expect(loaded.model, model_path)
        self._updating = asyncio.Lock()
        self._groups = UpdateGroups()
        self._session_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: dict[str, RunningSequence] = {}
        batching = Batching(loaded.forward, loaded.kv, self.decode, weight_version)
        self.scheduler = Scheduler(batching, self._post, Occupation(loaded.model, loaded.kv))
        config = loaded.model.config
        slots = loaded.kv.num_slots
        self.model = ServedModel(
            str(model_path),
            str(model_path),
            config.model_type,
            list(config.architectures or []),
            loaded.context_length,
            slots,
            slots * loaded.context_length,
            time.time(),
        )
        self.limits = Limits(
            loaded.context_length, loaded.vocab_size, _eos_ids(loaded, model_path, self._tokenizer), self.encode
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.scheduler.start()

    def stop(self) -> None:
        self.scheduler.stop()

    @property
    def healthy(self) -> bool:
        """Not paused, and able to step: idle, or the last step began less than STALLED_S ago."""
        s = self.scheduler
        moving = s.idle or time.monotonic() - s.beat < STALLED_S
        return s.alive and s.paused is None and moving

    def submit(self, generations: list[RunningSequence]) -> None:
        """Raises ApiError for a request id that is being served."""
        for g in generations:
            if g.rid in self._live:
                raise bad_value(f"Duplicate request ID detected: '{g.rid}' is being served.")
        self._live.update((g.rid, g) for g in generations)
        self.scheduler.submit(generations)

    async def abort(self, rid: str | None, *, abort_all: bool) -> None:
        """End all requests, or request `rid` and those whose id begins with it. As in SGLang, an unknown id ends none."""
        if abort_all or rid in self._live:
            await asyncio.wrap_future(self.scheduler.abort(rid, abort_all=abort_all))

    async def retire(self, generations: list[RunningSequence]) -> None:
        """Forget sequences whose reply is sent or whose client is gone, and end those still running."""
        for g in generations:
            if self._live.get(g.rid) is g:
                del self._live[g.rid]
        unfinished = [g for g in generations if g.finish is None]
        if unfinished:
            log.info("client hung up rids=%s", [g.rid for g in unfinished])
            self.scheduler.abort_these(unfinished)

    async def update_weights(self, model_path: str, version: str | None, *, flush_cache: bool, abort_all: bool) -> str:
        """Returns SGLang's message. Raises ApiError in the weights' shape, with nothing changed."""
        started = time.perf_counter()
        async with self._updating:
            model = self._loaded.model
            try:
                tensors = await asyncio.to_thread(read_checkpoint, Path(model_path), self._expected)
                tensors = await asyncio.to_thread(by_model_names, model, Path(model_path), tensors)
                if abort_all:
                    await asyncio.wrap_future(self.scheduler.abort(abort_all=True))
                pending = self.scheduler.update(lambda: copy_into(model, tensors), version, flush_cache=flush_cache)
                await asyncio.wrap_future(pending)
            except DataError as error:
                log.warning("weight update refused path=%s reason=%s", model_path, error)
                raise bad_weights(str(error)) from error
            except UpdateRefusedError as error:
                raise bad_weights(ASLEEP if self.scheduler.occupation.released else REFUSED) from error
            self.model.model_path = model_path
        log.info(
            "weights updated path=%s version=%s seconds=%.3f",
            model_path,
            self.scheduler.weight_version,
            time.perf_counter() - started,
        )
        suffix = f" Weight version updated to {version}." if version is not None else ""
        return "Succeeded to update model weights." + suffix

    async def release_memory(self, tags: list[str] | None) -> None:
        """Raises ApiError in the weights' shape while requests hold the cache."""
        chosen = _tags(tags)
        async with self._updating:
            if not await asyncio.wrap_future(self.scheduler.release(chosen)):
                raise bad_weights(BUSY)
        log.info("memory released tags=%s", ",".join(chosen))

    async def resume_memory(self, tags: list[str] | None) -> None:
        chosen = _tags(tags)
        async with self._updating:
            await asyncio.wrap_future(self.scheduler.allocate(chosen))
        log.info("memory resumed tags=%s", ",".join(chosen))

    async def proceed(self) -> None:
        """Raises ApiError in the weights' shape while memory is released or the weights have no values."""
        if not await asyncio.wrap_future(self.scheduler.resume()):
            raise bad_weights(STALE)

    async def join_group(self, address: str, port: int, rank: int, size: int, name: str, backend: str) -> str:
        """Returns SGLang's message, as do the methods below. Raises ApiError in the weights' shape."""
        try:
            await asyncio.to_thread(self._groups.join, address, port, rank, size, name, backend)
        except GroupError as error:
            raise bad_weights(f"Failed to initialize custom process group: {error}.") from error
        return "Succeeded to initialize custom process group."

    async def leave_group(self, name: str) -> str:
        if not await asyncio.to_thread(self._groups.leave, name):
            raise bad_weights("The group to be destroyed does not exist.")
        return "Succeeded to destroy custom process group."

    def begin_update(self) -> str:
        if self._session_open:
            raise bad_weights("a weight-update session is already open; call end_weight_update() first")
        self._session_open = True
        return "Success"

    def end_update(self) -> str:
        if not self._session_open:
            raise bad_weights("no weight-update session is open; call begin_weight_update() first")
        self._session_open = False
        return "Success"

    async def update_from_group(self, group: str, what: Announced, version: str | None, *, flush_cache: bool) -> str:
        if not self._session_open:
            raise bad_weights(
                "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
            )
        async with self._updating:
            model = self._loaded.model
            try:
                tensors = await asyncio.to_thread(self._groups.receive, group, what)
                await asyncio.to_thread(check_fit, tensors, model.state_dict())
                pending = self.scheduler.update(lambda: copy_into(model, tensors), version, flush_cache=flush_cache)
                await asyncio.wrap_future(pending)
            except GroupError as error:
                raise bad_weights(f"Failed to receive weights: {error}") from error
            except DataError as error:
                raise bad_weights(f"Failed to update parameter online: {error}") from error
            except UpdateRefusedError as error:
                raise bad_weights(ASLEEP if self.scheduler.occupation.released else REFUSED) from error
        suffix = f" Weight version updated to {version}." if version is not None else ""
        return "Succeeded to update parameter online." + suffix

    def weights_by_name(self, name: str, rows: int) -> list[Any] | None:
        """The first `rows` of a parameter's current value; None if the model has no such parameter, or its memory is free."""
        parameter = None if self.scheduler.occupation.stale else self._loaded.model.state_dict().get(name)
        values: list[Any] | None = None if parameter is None else parameter[:rows].tolist()
        return values

    def _post(self, notices: list[Callable[[], None]]) -> None:
        """From the scheduler's thread: run the notices on the event loop."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_run_all, notices)


def create(model_path: Path, size: EngineSize, weight_version: str) -> Engine:
    """Load the model and create the engine. Raises UnsupportedModelError with a message for the operator."""
    return Engine(model_path, load(model_path, size), weight_version)


def _tags(tags: list[str] | None) -> list[str]:
    """All if none is given, as in SGLang. Raises ApiError for an unknown one, which SGLang accepts."""
    unknown = [tag for tag in tags or () if tag not in TAGS]
    if unknown:
        raise bad_value(f"tags: {str(unknown[0])[:100]!r} is unknown; expected some of {', '.join(TAGS)}")
    return list(tags or TAGS)


def _run_all(notices: list[Callable[[], None]]) -> None:
    for notice in notices:
        notice()


def _tokenizer(model_path: Path) -> Tokenizer:
    file = model_path / "tokenizer.json"
    if not file.is_file():
        raise UnsupportedModelError(f"{model_path}: no tokenizer.json there; the local engine needs a fast tokenizer")
    return Tokenizer.from_file(str(file))


def _chat_template(model_path: Path) -> ChatTemplate | None:
    try:
        return ChatTemplate.from_dir(model_path)
    except ConfigError as error:  # without a template all routes but the chat's work
        log.info("no chat route: %s", error)
        return None


def _eos_ids(loaded: LoadedModel, model_path: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """All end-of-sequence ids of the generation config, the model's config and the tokenizer."""
    eos_ids: set[int] = set()
    generation: GenerationConfig | None = getattr(loaded.model, "generation_config", None)
    for value in (getattr(generation, "eos_token_id", None), getattr(loaded.model.config, "eos_token_id", None)):
        eos_ids.update(value if isinstance(value, list) else [] if value is None else [value])
    token = _eos_token(model_path)
    number = tokenizer.token_to_id(token) if token else None
    return frozenset(eos_ids if number is None else eos_ids | {number})


def _eos_token(model_path: Path) -> str | None:
    file = model_path / "tokenizer_config.json"
    if not file.is_file():
        return None
    token = json.loads(file.read_text()).get("eos_token")
    return token.get("content") if isinstance(token, dict) else token
