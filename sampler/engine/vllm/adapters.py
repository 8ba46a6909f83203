"""Adapters that vLLM serves over one base, by name, as SGLang keeps them: a request holds its own until it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from sampler.engine.api.errors import bad_adapter, bad_value
from sampler.engine.vllm.workers import WorkerFailed, Workers

log = logging.getLogger(__name__)


class Adapters:
    """A name stands for the same weights for ever: vLLM finds cached prefixes by it."""

    def __init__(self, llm: AsyncLLM, workers: Workers) -> None:
        self._llm, self._workers = llm, workers
        self._loaded: dict[str, LoRARequest] = {}
        self._users: dict[int, set[str]] = {}  # ids of requests, by the adapter's number
        self._changing = asyncio.Lock()
        self._ended = asyncio.Condition()
        self._numbers = itertools.count(1)

    def require(self, name: str | None) -> None:
        """Raises ApiError if it is not loaded. None: the base, which always is."""
        if name is not None and name not in self._loaded:
            raise bad_value(f"The following requested LoRA adapters are not loaded: {name}")

    def take(self, name: str | None, rid: str) -> LoRARequest | None:
        """The loaded adapter, held for request `rid` until `release`."""
        if name is None:
            return None
        adapter = self._loaded[name]
        self._users[adapter.lora_int_id].add(rid)
        return adapter

    async def release(self, adapter: LoRARequest | None, rid: str) -> None:
        if adapter is not None:
            self._users[adapter.lora_int_id].discard(rid)
            async with self._ended:
                self._ended.notify_all()

    async def load(self, name: str, path: Path) -> None:
        """Raises ApiError, with nothing changed; EngineDeadError."""
        async with self._changing:
            if name in self._loaded:
                raise bad_adapter(f"LoRA with name {name} already exists")
            adapter = LoRARequest(name, next(self._numbers), str(path))
            try:
                await self._workers.wait_for(str(path), self._llm.add_lora(adapter))
            except WorkerFailed as error:
                raise bad_adapter(str(error)) from error
            self._loaded[name], self._users[adapter.lora_int_id] = adapter, set()
        log.info("adapter loaded name=%s path=%s", name, path)

    async def unload(self, name: str) -> None:
        """No new request gets it from now on; returns once those that hold it have ended. Raises ApiError if it is not loaded."""
        async with self._changing:
            if (adapter := self._loaded.pop(name, None)) is None:
                raise bad_adapter(f"LoRA with name {name} does not exist")
        async with self._ended:
            await self._ended.wait_for(lambda: not self._users[adapter.lora_int_id])
        del self._users[adapter.lora_int_id]
        await self._workers.wait_for(f"unload {name}", self._llm.remove_lora(adapter.lora_int_id))
        log.info("adapter unloaded name=%s", name)

    def paths(self) -> dict[str, str]:
        return {name: adapter.lora_path for name, adapter in self._loaded.items()}
