"""vLLM's AsyncLLM as a served engine: requests in and tokens out, pauses, new weights, memory.

vLLM labels each token with the weights' version itself (`weight_versions` of an output): its core sets the label while it is
paused, between two steps. A pause `retract` is vLLM's `keep` with an emptied cache, `in_place` the same with the cache kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.prometheus import get_prometheus_registry

from sampler.engine.api.answers import ServedModel
from sampler.engine.api.errors import ApiError, bad_adapter, bad_weights
from sampler.engine.api.generation import Limits, ServedSequence
from sampler.engine.api.images import MOST_IMAGES
from sampler.engine.api.served import Announced, GroupPlace, PauseMode
from sampler.engine.api.texts import ModelTexts
from sampler.engine.api.updates import ASLEEP, BUSY, REFUSED, STALE, memory_tags
from sampler.engine.loading.checkpoint import ExpectedCheckpoint
from sampler.engine.vllm.int8 import number_type
from sampler.engine.vllm.requests import Requests
from sampler.engine.vllm.sampling import SUPPORTED
from sampler.engine.vllm.tasks import Tasks
from sampler.engine.vllm.workers import WorkerFailed, Workers
from shared.errors import DataError

log = logging.getLogger(__name__)

WITH_ADAPTERS = "the engine was started with --enable-lora, and keeps its base; expected a keeper with adapters: engine"

_PAUSES: dict[str, dict[str, Any]] = {
    "abort": {"mode": "abort", "clear_cache": True},
    "retract": {"mode": "keep", "clear_cache": True},
    "in_place": {"mode": "keep", "clear_cache": False},
}


# 35 methods: those of `ServedEngine`, of one line each where `Requests` or `Workers` does it
class VllmEngine:
    """`torn`: the weights are not known, or have no values; it stays paused until an update from disk succeeds."""

    def __init__(self, llm: AsyncLLM, model_path: Path, weight_version: str) -> None:
        """Raises ConfigError, DataError."""
        self._llm = llm
        self._expected = ExpectedCheckpoint.of(model_path)
        texts = ModelTexts(model_path)
        self.chat_template = texts.chat_template
        self.encode, self.decode = texts.encode, texts.decode
        self.weight_version = weight_version
        self._workers = Workers(llm)
        self._pause: PauseMode | None = None
        self._torn, self._released = False, frozenset[str]()
        self._session_open = False
        self._label: str | None = None  # of the weights that an open session has received whole
        self._changing = asyncio.Lock()
        self._tasks = Tasks()
        config = llm.vllm_config
        cache, scheduler, model = config.cache_config, config.scheduler_config, config.model_config
        self._on_cpu = config.device_config.device_type == "cpu"
        self.model = ServedModel(
            str(model_path),
            str(model_path),
            model.hf_config.model_type,
            list(model.hf_config.architectures or []),
            model.max_model_len,
            scheduler.max_num_seqs,
            (cache.num_gpu_blocks or 1) * cache.block_size,
            time.time(),
            _version(),
            number_type(config),
            config.device_config.device_type,
            config.lora_config.max_loras if config.lora_config is not None else 0,
            ranks=config.parallel_config.world_size,
            reads_images=model.is_multimodal_model,
        )
        self._requests = Requests(llm, self.model.max_running_requests, lambda: self.weight_version, self._workers)
        configured = (
            model.try_get_generation_config().get("eos_token_id"),
            getattr(model.hf_config, "eos_token_id", None),
        )
        self.limits = Limits(
            model.max_model_len,
            model.get_vocab_size(),
            texts.eos_ids(configured),
            self.encode,
            name="vLLM",
            sampling=SUPPORTED,
            adapters=self.model.adapters > 0,
            images=min(MOST_IMAGES, model.multimodal_config.get_limit_per_prompt("image"))
            if model.is_multimodal_model
            else 0,
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks.start(self._workers.watch())

    def stop(self) -> None:
        self._llm.shutdown()

    @property
    def failure(self) -> BaseException | None:
        return self._workers.failure

    @property
    def paused(self) -> bool:
        return self._pause is not None

    @property
    def healthy(self) -> bool:
        return not (self.paused or self._torn or self._released or self._llm.errored)

    # ------------------------------------------------------------------ requests

    async def submit(self, generations: list[ServedSequence]) -> None:
        self._requests.submit(generations)

    async def retire(self, generations: list[ServedSequence]) -> None:
        await self._requests.retire(generations)

    async def abort(self, rid: str | None, *, abort_all: bool) -> None:
        await self._requests.abort(rid, abort_all=abort_all)

    def load(self) -> dict[str, int]:
        return self._requests.load()

    def throughput(self) -> float:
        return self._requests.throughput()

    def own_metrics(self) -> str:
        """vLLM's, of `--enable-metrics`."""
        return generate_latest(get_prometheus_registry()).decode() if self._llm.log_stats else ""

    # ------------------------------------------------------------------ pauses

    async def pause(self, mode: PauseMode) -> None:
        async with self._changing:
            await self._paused_by(mode)

    async def _paused_by(self, mode: PauseMode) -> None:
        self._pause = mode  # first: it may take effect although the call fails
        await self._llm.pause_generation(**_PAUSES[mode])

    async def proceed(self) -> None:
        """Raises ApiError in the weights' shape while memory is released or the weights are not known."""
        async with self._changing:
            if self._torn or self._released:
                raise bad_weights(STALE)
            await self._llm.resume_generation()
            self._pause = None

    async def flush(self) -> bool:
        return bool(await self._llm.reset_prefix_cache())

    def _holds_cache(self) -> bool:
        """Whether any request may: also one that has sampled no token may hold a part of its prompt."""
        return self._pause in (None, "in_place") and self._requests.any_unfinished

    # ------------------------------------------------------------------ weights

    async def update_weights(self, model_path: str, version: str | None, *, flush_cache: bool, abort_all: bool) -> str:
        """Without a pause it waits for the requests that run. Raises ApiError; of status 500 if the weights are not known."""
        self._require_bare()
        try:
            await asyncio.to_thread(self._expected.check, Path(model_path))
        except DataError as error:
            raise bad_weights(str(error)) from error
        if abort_all:
            await self.abort(None, abort_all=True)
        async with self._changing:
            if self._released:
                raise bad_weights(ASLEEP)
            if self._pause == "in_place" and self._holds_cache() and flush_cache:
                raise bad_weights(REFUSED)
            if not self.paused:
                await self._llm.pause_generation(mode="wait", clear_cache=True)
            await self._weights_call("tandem_reload", path=model_path)
            await self._loaded(version, flush_cache=flush_cache)
            self.model.model_path = model_path
            if not self.paused:
                await self._llm.resume_generation()
        log.info("weights updated path=%s version=%s", model_path, self.weight_version)
        suffix = f" Weight version updated to {version}." if version is not None else ""
        return "Succeeded to update model weights." + suffix

    async def _weights_call(self, method: str, **arguments: Any) -> None:
        """Until it succeeds, the weights are a mixture. Raises ApiError of status 500."""
        self._torn = True
        try:
            await self._workers.call(method, **arguments)
        except WorkerFailed as error:
            raise await self._stays_paused(f"the weights are not known: {error}") from error

    async def _stays_paused(self, why: str) -> ApiError:
        """Until an update from disk succeeds."""
        log.error("it stays paused reason=%s", why)
        self._torn = True
        if self._pause in (None, "in_place"):
            await self._paused_by("retract")
        return ApiError({"success": False, "message": why[:500]}, 500)

    async def _loaded(self, version: str | None, *, flush_cache: bool) -> None:
        """Raises ApiError of status 500, and stays torn, if the cache of the old weights stays."""
        if flush_cache and not await self._llm.reset_prefix_cache():
            raise await self._stays_paused("the weights are loaded, and the cache of the old ones is in use")
        if version is not None:
            await self.set_version(version)
        self._torn = False

    async def set_version(self, version: str) -> None:
        await self._llm.update_weight_version(version)
        self.weight_version = version

    def _require_bare(self) -> None:
        """vLLM wraps the layers that may have adapters, and loads no weights into wrapped ones. Raises ApiError."""
        if self.model.adapters:
            raise bad_weights(WITH_ADAPTERS)

    def adapters(self) -> dict[str, str]:
        return self._requests.adapters.paths()

    async def load_adapter(self, name: str, path: str) -> None:
        if not self.model.adapters:
            raise bad_adapter("LoRA is not enabled. Please set `--enable-lora` to enable LoRA.")
        await self._requests.adapters.load(name, Path(path))

    async def unload_adapter(self, name: str) -> None:
        await self._requests.adapters.unload(name)

    async def join_group(self, place: GroupPlace) -> str:
        self._require_bare()
        where = {name: getattr(place, name) for name in GroupPlace.__slots__}
        try:
            await self._workers.call("tandem_join", where)
        except WorkerFailed as error:
            raise bad_weights(f"Failed to initialize custom process group: {error}.") from error
        return "Succeeded to initialize custom process group."

    async def leave_group(self, name: str) -> str:
        if not all(await self._workers.call("tandem_leave", name)):
            raise bad_weights("The group to be destroyed does not exist.")
        return "Succeeded to destroy custom process group."

    async def begin_update(self) -> str:
        if self._session_open:
            raise bad_weights("a weight-update session is already open; call end_weight_update() first")
        self._session_open, self._label = True, None
        return "Success"

    async def end_update(self) -> str:
        if not self._session_open:
            raise bad_weights("no weight-update session is open; call begin_weight_update() first")
        self._session_open = False
        async with self._changing:
            if any(await self._workers.call("tandem_begun")):
                await self._weights_call("tandem_end")
                if self._label is not None:  # the last bucket has come
                    await self._loaded(self._label, flush_cache=True)
        return "Success"

    async def update_from_group(self, group: str, what: Announced, version: str | None, *, flush_cache: bool) -> str:
        if not self._session_open:
            raise bad_weights(
                "update_weights_from_distributed must run between begin_weight_update() and end_weight_update()"
            )
        async with self._changing:
            bucket = {name: getattr(what, name) for name in Announced.__slots__}
            may_load = self.paused and not self._holds_cache() and not self._released
            try:
                await self._workers.call("tandem_receive", group, bucket, load=may_load)
            except WorkerFailed as error:
                raise bad_weights(f"Failed to receive weights: {error}") from error
            finally:
                self._torn = self._torn or any(await self._workers.call("tandem_begun"))
            self._label = version
        suffix = f" Weight version updated to {version}." if version is not None else ""
        return "Succeeded to update parameter online." + suffix

    async def weights_by_name(self, name: str, rows: int) -> list[Any] | None:
        """vLLM fuses parameters, so they have no names of the checkpoint's: `checksum` says what it holds."""
        return None

    async def checksum(self) -> str:
        digests = await self._llm.compute_weight_checksums()
        return " ".join(f"{name}={one[name]}" for one in digests for name in sorted(one))

    # ------------------------------------------------------------------ memory

    async def release_memory(self, tags: list[str] | None) -> None:
        chosen = memory_tags(tags)
        async with self._changing:
            if not self.paused or self._holds_cache():
                raise bad_weights(BUSY)
            if self._on_cpu:
                await self._workers.call("tandem_release", chosen)
            elif not self._released:
                await self._workers.call("sleep", 2)  # a worker's own: the core's would end the pause at the waking
            self._torn = self._torn or "weights" in chosen or not self._on_cpu
            self._released |= frozenset(chosen)
        log.info("memory released tags=%s", ",".join(chosen))

    async def resume_memory(self, tags: list[str] | None) -> None:
        chosen = memory_tags(tags)
        async with self._changing:
            if self._on_cpu:
                await self._workers.call("tandem_resume", chosen)
            elif due := sorted(self._released & frozenset(chosen) & {"weights", "kv_cache"}):
                await self._workers.call("wake_up", due)
            self._released -= frozenset(chosen)
        log.info("memory resumed tags=%s", ",".join(chosen))


def _version() -> str:
    import vllm

    return f"vllm-{vllm.__version__}"
