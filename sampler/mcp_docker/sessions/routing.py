"""Which server answers a request of a client, and what the gateway answers itself."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from sampler.mcp_docker.links.errors import Refused, ServerGone
from sampler.mcp_docker.links.messages import Message
from sampler.mcp_docker.links.server_link import ServerLink
from sampler.mcp_docker.sessions.offers import LISTS, Offers, Owner, able
from shared.errors import ConfigError

_BY_NAME = {"tools/call": "tools/list", "prompts/get": "prompts/list"}
_BY_URI = ("resources/read", "resources/subscribe", "resources/unsubscribe")
_RESOURCES, _TEMPLATES = "resources/list", "resources/templates/list"
RESOURCE_NOT_FOUND = -32002


class Router:
    """Of one set. `shared`: what sets of the same profile were seen to offer, for clients that call without listing."""

    def __init__(self, links: Mapping[str, ServerLink], shared: Offers) -> None:
        self._links = links
        self._shared = shared
        self._own = Offers()

    async def own_answer(self, method: str, params: Message) -> Message | None:
        """The result, if the gateway answers this request itself. Raises Refused and ServerGone."""
        if method == "ping":
            return {}
        if method in LISTS:
            return {LISTS[method][1]: await self.listed(method)}
        if method == "logging/setLevel":
            # Without the handshake each request says the level, and no server needs to agree.
            links = self._links.values()
            logging_links = [link for link in links if "logging" in link.capabilities or not link.has_handshake]
            await asyncio.gather(*(link.ask(method, params) for link in logging_links))
            return {}
        return None

    async def listed(self, method: str) -> list[Message]:
        """Raises Refused and ServerGone."""
        self._own.entries.setdefault(method, self._shared.entries.get(method, {}))
        try:
            entries = await self._own.listed(method, self._links)
        except ConfigError as exc:
            raise Refused(METHOD_NOT_FOUND, str(exc)) from exc
        self._shared.owners[method] = self._own.owners[method]
        self._shared.entries[method] = self._own.entries[method]
        if method == "tools/list":
            self._shared.tools = self._own.tools
        return entries

    async def target(self, message: Message) -> tuple[ServerLink, Message]:
        """The server for a request, and the request as that server knows it. Raises Refused and ServerGone."""
        method, params = message["method"], message.get("params", {})
        if method in _BY_NAME:
            return await self._by_name(message, method, params.get("name"))
        if method in _BY_URI:
            return await self._by_uri(params.get("uri")), message
        if method == "completion/complete":
            return await self._completing(message, params.get("ref"))
        raise Refused(METHOD_NOT_FOUND, f"method {method[:100]!r} is not supported")

    async def _by_name(self, message: Message, method: str, name: Any) -> tuple[ServerLink, Message]:
        if not isinstance(name, str):
            raise Refused(INVALID_PARAMS, f"params.name is {type(name).__name__}; expected a text")
        server, own_name = await self._owner(_BY_NAME[method], name)
        if own_name != name:
            message = message | {"params": message["params"] | {"name": own_name}}
        return self._links[server], message

    async def _owner(self, method: str, name: str) -> Owner:
        """Asks the servers of this set if the name is not known: their lists may differ from others'.

        Raises Refused; and ServerGone if a server that is gone may have had it, since its list was never seen.
        """
        owner = self._own.owner(method, name)
        if owner is None and method not in self._own.owners:
            owner = self._shared.owner(method, name)
        if owner is None:
            await self.listed(method)
            owner = self._own.owner(method, name)
        if owner is None:
            self._require_all_lists(method)
            kind = "tool" if method == "tools/list" else "prompt"
            raise Refused(INVALID_PARAMS, f"Unknown {kind}: {name[:200]}")
        return owner

    def _require_all_lists(self, method: str) -> None:
        """Raises ServerGone: an unknown name may be of a server that has ended before its first list."""
        for link in able(self._links, method):
            if link.name not in self._own.entries[method]:
                raise ServerGone(f"tool server {link.name!r}: {link.gone or 'it does not answer'}")

    async def tool(self, name: Any) -> Message:
        """A tool as it is shown to clients. Raises Refused and ServerGone."""
        if isinstance(name, str):
            await self._owner("tools/list", name)
            offered = self._own.tools.get(name) or self._shared.tools.get(name)
            if offered is not None:
                return offered
        raise Refused(INVALID_PARAMS, f"Unknown tool: {str(name)[:200]}")

    async def _by_uri(self, uri: Any) -> ServerLink:
        """The server that lists it; else the first that can read it, since a template's resources are in no list.

        Raises Refused; and ServerGone if a server that is gone may have it.
        """
        if not isinstance(uri, str):
            raise Refused(INVALID_PARAMS, f"params.uri is {type(uri).__name__}; expected a text")
        readers = able(self._links, _RESOURCES)
        if len(readers) == 1:
            return readers[0]
        if _RESOURCES not in self._own.owners:
            await self.listed(_RESOURCES)
        owner = self._own.owner(_RESOURCES, uri)
        if owner is not None:
            return self._links[owner[0]]
        if _TEMPLATES not in self._own.owners:  # while its servers live: what each may have if it ends
            with contextlib.suppress(Refused, ServerGone):
                await self.listed(_TEMPLATES)
        return await self._that_reads(uri, readers)

    async def _that_reads(self, uri: str, readers: Sequence[ServerLink]) -> ServerLink:
        """Raises Refused and ServerGone."""
        gone: list[ServerGone] = []
        for link in readers:
            try:
                await link.ask("resources/read", {"uri": uri})
            except ServerGone as exc:
                if self._may_have(link, uri):
                    gone.append(exc)
            except Refused:
                continue
            else:
                return link
        if gone:
            raise ServerGone("; ".join(map(str, gone)))
        raise Refused(RESOURCE_NOT_FOUND, f"Resource not found: {uri[:200]}")

    def _may_have(self, link: ServerLink, uri: str) -> bool:
        """May this server, which is gone, have had a resource that it did not list? Only its last lists can tell."""
        for method in (_RESOURCES, _TEMPLATES):
            entries = self._own.entries.get(method, {}).get(link.name)
            if entries is None or any(_are_alike(uri, str(entry.get(LISTS[method][2]))) for entry in entries):
                return True
        return False

    async def _completing(self, message: Message, ref: Any) -> tuple[ServerLink, Message]:
        if not isinstance(ref, dict):
            raise Refused(INVALID_PARAMS, f"params.ref is {type(ref).__name__}; expected an object")
        if ref.get("type") == "ref/prompt" and isinstance(name := ref.get("name"), str):
            server, own_name = await self._owner("prompts/list", name)
            params = message["params"] | {"ref": ref | {"name": own_name}}
            return self._links[server], message | {"params": params}
        uri = ref.get("uri")
        if isinstance(uri, str):
            owner = self._own.owner(_TEMPLATES, uri)
            if owner is None:
                await self.listed(_TEMPLATES)
                owner = self._own.owner(_TEMPLATES, uri)
            if owner is not None:
                return self._links[owner[0]], message
            self._require_all_lists(_TEMPLATES)
        raise Refused(INVALID_PARAMS, f"ref {str(ref)[:200]} names nothing that a server offers")


def _are_alike(uri: str, listed: str) -> bool:
    """Does `uri` begin like a listed address or template, or have its scheme and host? Servers may have more than they list."""
    prefix = listed.partition("{")[0]
    return uri.startswith(prefix) or _host(uri) == _host(prefix)


def _host(uri: str) -> str:
    """`scheme://host`, or `scheme:`."""
    scheme, colon, rest = uri.partition(":")
    return f"{scheme}://{rest[2:].partition('/')[0]}".lower() if rest.startswith("//") else f"{scheme}{colon}".lower()
