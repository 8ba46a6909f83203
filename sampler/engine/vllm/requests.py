"""The requests that vLLM serves: submitted, read as they come, aborted, counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from sampler.engine.api.errors import bad_value
from sampler.engine.api.generation import ServedSequence
from sampler.engine.vllm.adapters import Adapters
from sampler.engine.vllm.pictures import opened
from sampler.engine.vllm.sampling import aborted, params_of, take
from sampler.engine.vllm.tasks import Tasks
from sampler.engine.vllm.workers import Workers

log = logging.getLogger(__name__)


class Requests:
    """`version`: returns the label of the weights now."""

    def __init__(self, llm: AsyncLLM, most: int, version: Callable[[], str], workers: Workers) -> None:
        self._llm, self._most, self._version, self._workers = llm, most, version, workers
        self._live: dict[str, ServedSequence] = {}
        self.adapters = Adapters(llm, workers)
        self._tasks = Tasks()
        self._tokens, self._measured = 0, (0.0, 0)

    @property
    def any_unfinished(self) -> bool:
        return any(g.finish is None for g in self._live.values())

    def submit(self, generations: list[ServedSequence]) -> None:
        """Raises ApiError for a request id that is being served, or an adapter that is not loaded."""
        for g in generations:
            if g.rid in self._live:
                raise bad_value(f"Duplicate request ID detected: '{g.rid}' is being served.")
            self.adapters.require(g.adapter)
        for g in generations:
            adapter = self.adapters.take(g.adapter, g.rid)
            self._live[g.rid] = g
            self._tasks.start(self._serve(g, adapter))

    async def _serve(self, g: ServedSequence, adapter: LoRARequest | None) -> None:
        g.enter_version(self._version())  # for a stream's events; the end has vLLM's own labels
        try:
            if g.limit < 1:  # nothing to generate: max_new_tokens 0, or no room in the context
                g.cached_tokens, g.finish = 0, {"type": "length", "length": 0}
                return
            prompt: dict[str, Any] = {"prompt_token_ids": g.prompt}
            if g.images:
                prompt["multi_modal_data"] = {"image": await asyncio.to_thread(opened, g.images)}
            outputs = self._llm.generate(prompt, params_of(g), request_id=g.rid, lora_request=adapter)
            async for found in outputs:
                before = len(g.output)
                take(g, found)
                self._tokens += len(g.output) - before
                if g.stream and g.notify is not None:
                    g.notify()
        except EngineDeadError as error:
            g.finish = aborted("vLLM's core has ended", 503)
            self._workers.fail(error)
        except Exception as error:  # noqa: BLE001  # vLLM raises errors of any type for one request; the other requests go on
            log.warning("request refused rid=%s %s: %s", g.rid, type(error).__name__, error)
            g.finish = aborted(f"{type(error).__name__}: {error}", 400 if isinstance(error, ValueError) else 500)
        finally:
            self._end(g)
            await self.adapters.release(adapter, g.rid)

    def _end(self, g: ServedSequence) -> None:
        g.weight_version, g.finished_at = self._version(), time.perf_counter()
        g.finish = g.finish or aborted("Aborted")
        if g.notify is not None:
            g.notify()

    async def retire(self, generations: list[ServedSequence]) -> None:
        gone = [g for g in generations if g.finish is None]
        for g in generations:
            if self._live.get(g.rid) is g:
                del self._live[g.rid]
        if gone:
            log.info("client hung up rids=%s", [g.rid for g in gone])
            await self._llm.abort([g.rid for g in gone])

    async def abort(self, rid: str | None, *, abort_all: bool) -> None:
        if not abort_all and rid not in self._live:
            return
        chosen = [one for one, g in self._live.items() if g.finish is None and (abort_all or one.startswith(str(rid)))]
        if chosen:
            await self._llm.abort(chosen)

    def load(self) -> dict[str, int]:
        """A request runs from its first token on; those of a pause `retract` hold no cache, but will go on."""
        going = [g for g in self._live.values() if g.finish is None]
        running = [g for g in going if g.output][: self._most]
        tokens = sum(len(g.prompt) + len(g.output) for g in running)
        return {"running": len(running), "waiting": len(going) - len(running), "tokens": tokens}

    def throughput(self) -> float:
        now, before = (time.monotonic(), self._tokens), self._measured
        self._measured = now
        return (now[1] - before[1]) / (now[0] - before[0]) if before[0] and now[0] > before[0] else 0.0
