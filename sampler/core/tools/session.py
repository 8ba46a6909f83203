"""The tools of one episode: one session per server, names made unique, allow and deny lists, bounded results.

    session = ToolSession(servers, allow=["search", "files.*"], exclude=["files.write_*"])
    await session.open()                        # all servers, when `traffic` permits; the first failure closes the rest
    schemas = session.list_tools()              # OpenAI function schemas, in a fixed order
    result = await session.call("search", {"query": "…"})
    await session.close()

Promise: an answer of a tool, errors included, is a `ToolResult`; a fault of a tool server (it crashes, hangs, loses the
session) is a `ToolFailure`, which is never scored. One kind of it, `ToolServerUnavailable`, counts no failure for the slot.

The tool list is fixed at the opening: the tools stand at the beginning of the prompt, whose tokens are never rewritten. When a
server announces a new list, the catalogue drops the old one, and later episodes see the new tools.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from mcp_types import CallToolResult

from sampler.core.tools.catalog import ToolCatalog
from sampler.core.tools.image_results import StoreImage, with_images
from sampler.core.tools.limits import ToolLimits
from sampler.core.tools.link import Link
from sampler.core.tools.names import chosen, named_tools
from sampler.core.tools.offered import OfferedTool
from sampler.core.tools.results import OffsetsOf, ToolResult, bounded, to_result, with_summary
from sampler.core.tools.traffic import Traffic
from shared.errors import ConfigError
from shared.mcp.servers import ToolServer

T = TypeVar("T")


class ToolSession:
    """`allow`: names or patterns that this episode may use; None allows all. `exclude` takes precedence. `episode`: the id sent
    to servers; None: a random id. `offsets`: see `results`. `store_image`: for a model that sees; None: it reads texts."""

    # 9 parameters: all but the servers are optional
    def __init__(
        self,
        servers: Sequence[ToolServer],
        allow: Collection[str] | None = None,
        limits: ToolLimits | None = None,
        catalog: ToolCatalog | None = None,
        traffic: Traffic | None = None,
        *,
        exclude: Collection[str] = (),
        episode: str | None = None,
        offsets: OffsetsOf | None = None,
        store_image: StoreImage | None = None,
    ) -> None:
        self._limits = limits or ToolLimits()
        self._allow = None if allow is None else list(allow)
        self._exclude = list(exclude)
        self._offsets = offsets
        self._store_image = store_image
        self._catalog = catalog or ToolCatalog(max_age_s=0)
        shared = traffic or Traffic()
        episode = episode or uuid.uuid4().hex
        known_as = [replace(server, episode=episode) for server in servers]
        self._links = [Link(server, self._limits, self._catalog, shared) for server in known_as]
        self._named: dict[str, OfferedTool] = {}  # all offered tools
        self._several = False
        self._tools: dict[str, OfferedTool] = {}
        self._owners: dict[str, Link] = {}  # by server name

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to every server and list its tools. Raises ToolFailure, or ConfigError for an unknown allowed name."""
        try:
            await self._offer(await _all(link.open() for link in self._links))
        except BaseException:  # cancelled too: leave nothing half-open
            await self.close()
            raise

    async def _offer(self, listed: Sequence[list[OfferedTool]]) -> None:
        """Choose among `listed`; if an allowed name is missing, query the servers themselves once more."""
        try:
            self._choose(listed)
        except ConfigError:
            self._choose(await _all(link.list_anew() for link in self._links))

    def require(self, allow: Collection[str] | None, exclude: Collection[str]) -> None:
        """Check whether a session with these lists would open. Raises ConfigError like the opening itself."""
        chosen(self._named, allow, exclude, several_servers=self._several, offered_before=self._catalog.ever_listed)

    def _choose(self, listed: Sequence[list[OfferedTool]]) -> None:
        """Raises ConfigError."""
        offered = [(link, tool) for link, tools in zip(self._links, listed, strict=True) for tool in tools]
        self._owners = _owners(offered)
        self._named = named_tools([tool for _, tool in offered])
        self._several = len(self._links) > 1 or any(link.server.transport == "mcpapi" for link in self._links)
        before = self._catalog.ever_listed
        self._tools = chosen(
            self._named, self._allow, self._exclude, several_servers=self._several, offered_before=before
        )

    async def close(self) -> None:
        """End all sessions; bounded by the limits."""
        await asyncio.gather(*(link.close() for link in self._links))

    def list_tools(self) -> list[dict[str, Any]]:
        """OpenAI function schemas: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
        return [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description, "parameters": tool.parameters},
            }
            for name, tool in self._tools.items()
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float | None = None) -> ToolResult:
        """Call a tool. Unknown names and rejected arguments are answers (`is_error`); ToolFailure is an infrastructure failure.

        `timeout_s=None`: the tool's own, else its server's, else the limits'.
        """
        began = time.monotonic()
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            text, cut_chars = bounded(f"unknown tool {name!r}; available: {known}", self._limits, self._offsets)
            return ToolResult(text, True, 0.0, cut_chars)
        answer, retries = await self._owners[tool.server].call(tool, arguments, timeout_s)
        duration_s = time.monotonic() - began

        def bound(answer: CallToolResult) -> ToolResult:
            return to_result(answer, duration_s, self._limits, self._offsets, retries)

        return bound(answer) if self._store_image is None else await with_images(answer, self._store_image, bound)

    @property
    def own_ends(self) -> list[str]:
        """How servers' own processes ended by calls of this episode, which the model was told."""
        return [end for link in self._links for end in link.own_ends]

    def with_summary(self, result: ToolResult, summary: str) -> ToolResult:
        """`result` with an agent's summary, within the limits."""
        return with_summary(result, summary, self._limits, self._offsets)


def _owners(offered: Sequence[tuple[Link, OfferedTool]]) -> dict[str, Link]:
    """By server. Raises ConfigError if a manager's server shares its name with another: `files.*` would be ambiguous."""
    owners: dict[str, Link] = {}
    for link, tool in offered:
        if owners.setdefault(tool.server, link) is not link:
            both = " and ".join(repr(each.server.name) for each in (owners[tool.server], link))
            raise ConfigError(f"both {both} offer a server {tool.server!r}; rename or remove one of them")
    return owners


async def _all(answers: Iterable[Awaitable[T]]) -> list[T]:
    """All results in order, once all are done; then raises the first failure."""
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:
        raise failures[0]
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
