"""Versions that an engine serves as adapters of the base it was started with, under a name each (setting `adapters: engine`).

    new version ─▶ files checked ─▶ loaded under its name ─▶ samplers read the name ─▶ after `SETTLE_S` the older one is unloaded

Nothing is paused: a request ends with the adapter that it began with. The name says run, policy, version and content, so it never
means other weights, and an engine may serve several policies, runs and versions of one base at once, each by a keeper of its own.
The engine unloads an adapter once no request holds it. The base is never changed; a keeper that was killed leaves adapters, which
the next one of the same policy unloads.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import EngineError, EngineRefused
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.update import SETTLE_S
from shared.documents.run import FIRST_VERSION, PolicyVersion
from shared.errors import ConfigError, DataError
from shared.weights.adapters import ADAPTER_FOLDER, is_dora
from shared.weights.files import verify_files

log = logging.getLogger(__name__)

LEAVE_S = 10.0


class EngineAdapters:
    """One policy's adapters in one engine. `serving`: the name of the current one; None: the base."""

    def __init__(self, client: EngineClient, config: KeeperConfig) -> None:
        """Raises ConfigError for the local engine."""
        if config.engine_url is None and config.engine_command is None:
            raise ConfigError(
                "adapters is engine, and the local engine serves merged weights alone; expected engine_command or engine_url of "
                "SGLang or vLLM, started with --enable-lora"
            )
        self._client = client
        only = "" if config.serve_version is None else f".only{config.serve_version}"
        self._prefix = f"{config.run}.{config.policy}{only}@"
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self.serving: str | None = None

    async def serve(self, url: str, target: PolicyVersion) -> int:
        """Load `target`, and unload what it replaces later; returns the bytes that were read.

        Raises DataError for damaged files, or a version that is no adapter of version 0; EngineRefused if the engine was not
        started with adapters, over version 0.
        """
        label = (await self._client.model_info(url)).weight_version
        if label != str(FIRST_VERSION):
            raise EngineRefused(
                f"{url} reports version {label!r} of its base; expected {FIRST_VERSION}, to which published adapters belong: "
                f"start it over model_name_or_path with --weight-version {FIRST_VERSION}"
            )
        name = None if target.version == FIRST_VERSION else self._name_of(target)
        await self._keep(name)
        loaded = await self._client.adapters(url)
        is_new = name is not None and name not in loaded
        if name is not None and is_new:
            folder = Path(target.path) / ADAPTER_FOLDER
            await asyncio.to_thread(verify_files, folder, target.adapter or {})
            if is_dora(folder):
                raise DataError(
                    f"version {target.version} is a DoRA (use_dora), which vLLM and SGLang refuse; expected a keeper with "
                    "adapters: merged"
                )
            await self._client.load_adapter(url, name, str(folder))
        self.serving = name
        self._retire(url, loaded)
        return target.bytes_from_base if is_new else 0

    async def is_lost(self, url: str) -> bool:
        """Whether the engine no longer has the current adapter: it restarted, or another client unloaded it."""
        return self.serving is not None and self.serving not in await self._client.adapters(url)

    def _name_of(self, target: PolicyVersion) -> str:
        """Raises DataError."""
        if not target.adapter or target.base != FIRST_VERSION:
            raise DataError(
                f"version {target.version} is published as {target.kind}; expected an adapter of version {FIRST_VERSION}, as "
                "`adapters: engine` needs it (publish_mode: adapter)"
            )
        content = "".join(entry["sha256"] for _, entry in sorted(target.adapter.items()))
        return f"{self._prefix}{target.version}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    async def _keep(self, name: str | None) -> None:
        """An evaluation goes back to an older version: do not unload it."""
        unloading = None if name is None else self._unloading.get(name)
        if unloading is not None:
            unloading.cancel()
            await asyncio.wait([unloading])

    def _retire(self, url: str, loaded: Iterable[str]) -> None:
        for name in loaded:
            if name.startswith(self._prefix) and name != self.serving and name not in self._unloading:
                task = asyncio.create_task(self._unload(url, name, SETTLE_S), name=f"unload {name}")
                self._unloading[name] = task

    async def _unload(self, url: str, name: str, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)  # until every sampler has read the new name
            await self._client.unload_adapter(url, name)
        except EngineError as exc:
            log.warning("adapter not unloaded name=%s url=%s %s", name, url, exc)
        finally:
            if self._unloading.get(name) is asyncio.current_task():
                del self._unloading[name]

    async def leave(self, url: str) -> None:
        """At the keeper's end: the engine may go on for others."""
        names = {*self._unloading, *([self.serving] if self.serving else [])}
        for task in self._unloading.values():
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(*(self._unload(url, name, 0.0) for name in names))
