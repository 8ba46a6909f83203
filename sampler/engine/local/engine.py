"""The engine behind the routes: model, tokenizer and scheduler, and the bridge from its thread to asyncio.

Owns the order of a weight update: read and verify the folder in a worker thread, one update at a time, and only then pass the
verified tensors to the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sampler.engine.api.answers import ServedModel
from sampler.engine.api.errors import ApiError, bad_adapter, bad_value, bad_weights
from sampler.engine.api.generation import Limits, ServedSequence
from sampler.engine.api.images import MOST_IMAGES
from sampler.engine.api.protocol import fit_read_prompt
from sampler.engine.api.served import Announced, GroupPlace, PauseMode
from sampler.engine.api.texts import ModelTexts
from sampler.engine.api.updates import ASLEEP, BUSY, REFUSED, STALE, memory_tags
from sampler.engine.loading.checkpoint import ExpectedCheckpoint
from sampler.engine.loading.groups import GroupError, UpdateGroups, check_fit
from sampler.engine.local.batching import Batching
from sampler.engine.local.model_class import reads_images
from sampler.engine.local.occupation import Occupation
from sampler.engine.local.runner import EngineSize, LoadedModel, load
from sampler.engine.local.running import RunningSequence
from sampler.engine.local.scheduler import Scheduler, UpdateRefusedError
from sampler.engine.local.weights import by_model_names, checksum_of, copy_into, live_name, read_checkpoint, renamed
from shared.errors import DataError

if TYPE_CHECKING:
    from sampler.engine.local.image_reader import ImageReader
    from sampler.engine.local.vision import Vision

log = logging.getLogger(__name__)

VERSION = "tandem-local-1"

NO_ADAPTERS = "the local engine serves merged weights alone; expected a keeper with adapters: merged"
STALLED_S = 20.0  # a scheduler without a turn for this long is unhealthy (SGLang's health limit)


# 34 methods: those of `ServedEngine`
class Engine:
    def __init__(
        self,
        model_path: Path,
        loaded: LoadedModel,
        weight_version: str,
        texts: ModelTexts,
        reader: ImageReader | None,
    ) -> None:
        """`reader`: of a model that reads images."""
        self._loaded, self._reader = loaded, reader
        self.chat_template = texts.chat_template
        self.encode, self.decode = texts.encode, texts.decode
        self._expected = ExpectedCheckpoint.of(model_path)
        self._updating = asyncio.Lock()
        self._groups = UpdateGroups("the local engine")
        self._session_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: dict[str, ServedSequence] = {}
        batching = Batching(loaded.forward, loaded.kv, self.decode, weight_version, _vision(loaded, reader))
        self.scheduler = Scheduler(batching, self._post, Occupation(loaded.model, loaded.kv))
        config = loaded.model.config
        generation = getattr(loaded.model, "generation_config", None)
        eos_ids = (
            getattr(generation, "eos_token_id", None),
            getattr(config.get_text_config(), "eos_token_id", None),
        )
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
            VERSION,
            reads_images=reader is not None,
        )
        self.limits = Limits(
            loaded.context_length,
            loaded.vocab_size,
            texts.eos_ids(eos_ids),
            self.encode,
            sequence=RunningSequence,
            images=0 if reader is None else MOST_IMAGES,
            experts=loaded.kv.experts is not None,
        )

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

    @property
    def weight_version(self) -> str:
        return self.scheduler.weight_version

    @property
    def paused(self) -> bool:
        return self.scheduler.paused is not None

    @property
    def failure(self) -> BaseException | None:
        return self.scheduler.failure

    def load(self) -> dict[str, int]:
        return self.scheduler.load()

    def throughput(self) -> float:
        return self.scheduler.throughput()

    def own_metrics(self) -> str:
        return ""

    async def submit(self, generations: list[ServedSequence]) -> None:
        for g in generations:
            if g.rid in self._live:
                raise bad_value(f"Duplicate request ID detected: '{g.rid}' is being served.")
        self._live.update((g.rid, g) for g in generations)
        if self._reader is not None:
            try:
                await self._read_images(self._reader, _running(generations))
            except ApiError:
                self._forget(generations)
                raise
        self.scheduler.submit([g for g in _running(generations) if g.finish is None])

    async def _read_images(self, reader: ImageReader, generations: list[RunningSequence]) -> None:
        """Raises ApiError."""
        for g in generations:
            reader.require_images(g.prompt, len(g.images))
        for g in generations:
            if g.images:
                prompt, shown = await asyncio.to_thread(reader.read, g.prompt, g.images)
                g.show(prompt, shown)
                fit_read_prompt(g, self.limits)

    async def abort(self, rid: str | None, *, abort_all: bool) -> None:
        if self._reader is not None:
            self._end_unread(rid, abort_all=abort_all)
        if abort_all or rid in self._live:
            await asyncio.wrap_future(self.scheduler.abort(rid, abort_all=abort_all))

    def _end_unread(self, rid: str | None, *, abort_all: bool) -> None:
        """Those whose images are being read: the scheduler does not have them yet."""
        for g in _running(list(self._live.values())):
            if g.images and g.shown is None and (abort_all or (bool(rid) and g.rid.startswith(str(rid)))):
                g.enter_version(self.weight_version)
                g.weight_version, g.finished_at = self.weight_version, time.perf_counter()
                g.finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                if g.notify is not None:
                    g.notify()

    def _forget(self, generations: list[ServedSequence]) -> None:
        for g in generations:
            if self._live.get(g.rid) is g:
                del self._live[g.rid]

    async def retire(self, generations: list[ServedSequence]) -> None:
        self._forget(generations)
        unfinished = [g for g in generations if g.finish is None]
        if unfinished:
            log.info("client hung up rids=%s", [g.rid for g in unfinished])
            self.scheduler.abort_these(_running(unfinished))

    async def update_weights(self, model_path: str, version: str | None, *, flush_cache: bool, abort_all: bool) -> str:
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

    async def pause(self, mode: PauseMode) -> None:
        await asyncio.wrap_future(self.scheduler.pause(mode))

    async def flush(self) -> bool:
        return await asyncio.wrap_future(self.scheduler.flush())

    async def set_version(self, version: str) -> None:
        await asyncio.wrap_future(self.scheduler.set_version(version))

    def adapters(self) -> dict[str, str]:
        return {}

    async def load_adapter(self, name: str, path: str) -> None:
        raise bad_adapter(NO_ADAPTERS)

    async def unload_adapter(self, name: str) -> None:
        raise bad_adapter(NO_ADAPTERS)

    async def release_memory(self, tags: list[str] | None) -> None:
        """Raises ApiError in the weights' shape while requests hold the cache."""
        chosen = memory_tags(tags)
        async with self._updating:
            if not await asyncio.wrap_future(self.scheduler.release(chosen)):
                raise bad_weights(BUSY)
        log.info("memory released tags=%s", ",".join(chosen))

    async def resume_memory(self, tags: list[str] | None) -> None:
        chosen = memory_tags(tags)
        async with self._updating:
            await asyncio.wrap_future(self.scheduler.allocate(chosen))
        log.info("memory resumed tags=%s", ",".join(chosen))

    async def proceed(self) -> None:
        """Raises ApiError in the weights' shape while memory is released or the weights have no values."""
        if not await asyncio.wrap_future(self.scheduler.resume()):
            raise bad_weights(STALE)

    async def join_group(self, place: GroupPlace) -> str:
        try:
            await asyncio.to_thread(self._groups.join, place)
        except GroupError as error:
            raise bad_weights(f"Failed to initialize custom process group: {error}.") from error
        return "Succeeded to initialize custom process group."

    async def leave_group(self, name: str) -> str:
        if not await asyncio.to_thread(self._groups.leave, name):
            raise bad_weights("The group to be destroyed does not exist.")
        return "Succeeded to destroy custom process group."

    async def begin_update(self) -> str:
        if self._session_open:
            raise bad_weights("a weight-update session is already open; call end_weight_update() first")
        self._session_open = True
        return "Success"

    async def end_update(self) -> str:
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
                tensors = renamed(tensors, model.state_dict())
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

    async def weights_by_name(self, name: str, rows: int) -> list[Any] | None:
        live = self._loaded.model.state_dict()
        parameter = None if self.scheduler.occupation.stale else live.get(live_name(name, live))
        values: list[Any] | None = None if parameter is None else parameter[:rows].tolist()
        return values

    async def checksum(self) -> str:
        return await asyncio.to_thread(checksum_of, self._loaded.model)

    def _post(self, notices: list[Callable[[], None]]) -> None:
        """From the scheduler's thread: run the notices on the event loop."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_run_all, notices)


def create(model_path: Path, size: EngineSize, weight_version: str) -> Engine:
    """Load the model and create the engine. Raises UnsupportedModelError with a message for the operator."""
    texts = ModelTexts(model_path)
    if not reads_images(model_path):
        return Engine(model_path, load(model_path, size), weight_version, texts, None)
    from sampler.engine.local.image_reader import ImageReader  # numpy's part of images: for vision models alone

    reader = ImageReader.of(model_path, texts.encode_part)
    return Engine(model_path, load(model_path, size, reader.family), weight_version, texts, reader)


def _vision(loaded: LoadedModel, reader: ImageReader | None) -> Vision | None:
    if reader is None:
        return None
    from sampler.engine.local.vision import Vision

    return Vision(loaded.model, reader)


def _running(generations: list[ServedSequence]) -> list[RunningSequence]:
    """As `limits.sequence` makes them."""
    return cast(list[RunningSequence], generations)


def _run_all(notices: list[Callable[[], None]]) -> None:
    for notice in notices:
        notice()
