"""The keeper's engine from its start to its end: one that runs already, or a process that is started here, and again after it
has exited.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.reports import ServerInfo
from sampler.core.errors import EngineUnavailable
from sampler.engine.keeper.child import EngineChild, local_command
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.starting import first_answer

log = logging.getLogger(__name__)


class EngineLifecycle:
    """`restarts` counts exits of the process, also during its start. What the engine reports of itself is of its last start."""

    def __init__(self, client: EngineClient, config: KeeperConfig) -> None:
        self._client = client
        self._config = config
        self._info: ServerInfo | None = None
        self.restarts = 0
        command = config.engine_command or local_command(config.local.local_flags())
        given = (
            config.model_name_or_path,
            command,
            config.engine_port,
            config.engines.engine_api_key,
            config.engine_host,
        )
        self._child = None if config.engine_url else EngineChild(*given)

    @property
    def is_started_here(self) -> bool:
        return self._child is not None

    @property
    def url(self) -> str:
        return self._config.engine_url or self._require_child().url

    @property
    def has_ended(self) -> bool:
        return self._child is not None and self._child.ended

    @property
    def capacity(self) -> int:
        """Requests that it runs at once; 0 before it has answered."""
        reported = 0 if self._info is None else self._info.max_running_requests or 1
        return self._config.capacity or reported

    @property
    def context(self) -> int | None:
        return None if self._info is None else self._info.context

    @property
    def kind(self) -> str:
        return "local" if self._info is None else self._info.kind

    @property
    def dtype(self) -> str | None:
        return None if self._info is None else self._info.dtype

    async def start(
        self, stop: asyncio.Event, until_free: Callable[[], Awaitable[None]], ended: Callable[[str], Awaitable[None]]
    ) -> ServerInfo | None:
        """Its first report; None at the keeper's own end, at which none is started or waited for.

        `until_free` waits for its device; `ended` is told of each exit. Raises KeyRefused; EngineUnavailable: it does not start.
        """
        while True:
            await until_free()
            if stop.is_set():
                return None
            if self._child is not None:
                try:
                    await self._child.start()
                except OSError as exc:
                    raise EngineUnavailable(f"the engine cannot be started: {exc}") from exc
            limit_s = self._config.start_timeout_s
            info = await first_answer(self._client, self.url, limit_s, lambda: self.has_ended or stop.is_set())
            if info is not None:
                break
            await self.count_end(stop, ended)
        if self._child is not None:
            self._child.note()
        self._info = info
        return info

    async def count_end(self, stop: asyncio.Event, ended: Callable[[str], Awaitable[None]]) -> None:
        """The process has exited. At the keeper's own end: nothing. Raises EngineUnavailable after too many exits."""
        await asyncio.sleep(0)  # a signal that ended it may have been sent to this process too
        if stop.is_set():
            return
        await (child := self._require_child()).kill()  # what a killed guard left
        self.restarts += 1
        log.error("engine ended status=%s restart=%d", child.status, self.restarts)
        if self.restarts > self._config.max_restarts:
            raise EngineUnavailable(
                f"the engine ended {self.restarts} times, the last with status {child.status}; see its log, "
                "or raise --max_restarts"
            )
        await ended(f"ended with status {child.status}; starting again")

    async def kill(self) -> None:
        """Of an engine that is started here."""
        await self._require_child().kill()

    async def stop(self) -> None:
        """Ends the process, if it was started here."""
        if self._child is not None:
            await self._child.stop()

    def _require_child(self) -> EngineChild:
        assert self._child
        return self._child
