"""One set of tool servers: what one session, and so one episode, has for itself. Its private folder ends with it."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sampler.mcp_docker.links.errors import StartFailed
from sampler.mcp_docker.links.messages import Message
from sampler.mcp_docker.links.server_link import LinkOwner, ServerLink
from shared.sandbox import discard, new_folder

log = logging.getLogger(__name__)

MAX_END_S = 60.0  # a process has at most 9 s until SIGKILL has ended it
MakeLinks = Callable[[Path], list[ServerLink]]


@dataclass(frozen=True)
class Profile:
    """What servers learn about a client at the handshake, and may choose their tools by. Sets of one profile are alike."""

    capabilities_json: str = "{}"

    @classmethod
    def of(cls, capabilities: Message) -> "Profile":
        return cls(json.dumps(capabilities, sort_keys=True))

    @property
    def capabilities(self) -> Message:
        parsed: Message = json.loads(self.capabilities_json)
        return parsed


class ToolSet:
    """`links`: by server name, in the order of the mcpServers JSON."""

    def __init__(self, profile: Profile, make_links: MakeLinks, parent: Path) -> None:
        self.profile = profile
        self._parent = parent
        self.folder: Path | None = None
        self.links: dict[str, ServerLink] = {}
        self._make_links = make_links

    async def open(self, within_s: float) -> None:
        """Start all servers. Raises StartFailed, and then leaves nothing."""
        try:
            self.folder = new_folder(self._parent)
            self.links = {link.name: link for link in self._make_links(self.folder)}
            capabilities = self.profile.capabilities
            async with asyncio.timeout(within_s):
                await _all_or_first_failure([link.open(capabilities) for link in self.links.values()])
        except TimeoutError as exc:
            await self.close()
            slow = ", ".join(repr(name) for name, link in self.links.items() if not link.told) or "none"
            raise StartFailed(f"not every tool server answered within {within_s:g} s: {slow} did not") from exc
        except BaseException:  # cancelled too: no process and no folder is left
            await self.close()
            raise

    @property
    def is_whole(self) -> bool:
        return not any(link.gone for link in self.links.values())

    def belongs_to(self, owner: LinkOwner) -> None:
        for link in self.links.values():
            link.owner = owner

    async def close(self) -> None:
        """End all processes, then remove the folder. Runs to its end also if the caller is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        hanging = await _in_time({f"tool server {name!r}": link.close() for name, link in self.links.items()})
        if self.folder is not None and hanging:  # its user is still in use
            _keep(asyncio.ensure_future(_discard_after(hanging, self.folder)))
        elif self.folder is not None:
            await _discard(self.folder)


End = asyncio.Task[None]


async def _in_time(ends: Mapping[str, Coroutine[Any, Any, None]]) -> dict[End, str]:
    """Those that hang, which are logged, and go on without being waited for. `ends`: by what ends."""
    tasks = {asyncio.ensure_future(end): what for what, end in ends.items()}
    if not tasks:
        return {}
    _, hanging = await asyncio.wait(tasks, timeout=MAX_END_S)
    for task, what in tasks.items():
        if task in hanging:
            log.error("%s has not ended within %g s: what is left is removed when it ends", what, MAX_END_S)
            _keep(task)
        else:
            _log_failure(task, what)
    return {task: what for task, what in tasks.items() if task in hanging}


def _log_failure(task: End, what: str) -> None:
    if task.cancelled():
        log.error("%s: its end was cancelled", what)
    elif (exc := task.exception()) is not None:
        log.error("%s: its end failed: %s", what, exc)


async def _discard(folder: Path) -> None:
    await _in_time({f"the folder {folder}": discard(folder)})


async def _discard_after(hanging: Mapping[End, str], folder: Path) -> None:
    await asyncio.wait(hanging)
    for task, what in hanging.items():
        _log_failure(task, what)
    await _discard(folder)


def _keep(task: End) -> None:
    _hanging.add(task)
    task.add_done_callback(_hanging.discard)


_hanging: set[End] = set()  # the loop holds tasks weakly


async def _all_or_first_failure(openings: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Unlike a TaskGroup, it raises the failure itself, and only after every opening has ended."""
    tasks = [asyncio.ensure_future(opening) for opening in openings]
    try:
        await asyncio.gather(*tasks)
    except BaseException:  # cancelled too: no opening runs on alone
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
