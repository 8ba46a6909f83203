"""What the servers of a set offer together: their lists merged, and which server has the tool, prompt or resource of a name.

Names of tools and prompts follow `shared.mcp.names`: one's own name where it is unique, else `server_name`. A server that is
gone is in no list, but keeps its names: a call of its tool fails with the server, and is not told as a mistake of its caller.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mcp_types import METHOD_NOT_FOUND

from sampler.mcp_docker.links.errors import Refused, ServerAway, ServerGone
from sampler.mcp_docker.links.messages import Message
from sampler.mcp_docker.links.server_link import ServerLink
from shared.mcp.names import unique_names

Links = Mapping[str, ServerLink]
Owner = tuple[str, str]  # the server, and its own name for the thing

# method: the server's capability, the key of the list, the key of an entry's name
LISTS = {
    "tools/list": ("tools", "tools", "name"),
    "prompts/list": ("prompts", "prompts", "name"),
    "resources/list": ("resources", "resources", "uri"),
    "resources/templates/list": ("resources", "resourceTemplates", "uriTemplate"),
}
_NAMED = ("tools/list", "prompts/list")


@dataclass
class Offers:
    """`owners`: {method of the list: {shown name: owner}}, of the lists that were asked for. `tools`: by shown name.

    `entries`: {method of the list: {server: its last list}}. All three include servers that are gone.
    """

    owners: dict[str, dict[str, Owner]] = field(default_factory=dict)
    entries: dict[str, dict[str, list[Message]]] = field(default_factory=dict)
    tools: dict[str, Message] = field(default_factory=dict)
    changes: int = 0  # list changes that its servers had announced when it was made

    async def listed(self, method: str, links: Links) -> list[Message]:
        """The merged list, asked of the servers now. Raises Refused, and ServerGone if none of them answers."""
        name_key = LISTS[method][2]
        able_links = able(links, method)
        outcomes = await asyncio.gather(*(_entries(link, method) for link in able_links))
        answered = {
            link.name: entries for link, entries in zip(able_links, outcomes, strict=True) if isinstance(entries, list)
        }
        if outcomes and not answered:
            raise ServerGone("; ".join(str(entries) for entries in outcomes))
        last = self.entries[method] = {**self.entries.get(method, {}), **answered}
        found = [(link.name, entry) for link in able_links for entry in last.get(link.name, [])]
        named = [(server, entry) for server, entry in found if isinstance(entry.get(name_key), str)]
        shown = _unique(named) if method in _NAMED else [(entry[name_key], server, entry) for server, entry in named]
        owners: dict[str, Owner] = {}
        for name, server, entry in shown:
            owners.setdefault(name, (server, entry[name_key]))
        self.owners[method] = owners
        merged = [
            (server, entry if entry[name_key] == name else entry | {name_key: name}) for name, server, entry in shown
        ]
        if method == "tools/list":
            self.tools = {tool["name"]: tool for _, tool in merged}
        return [entry for server, entry in merged if server in answered]

    def owner(self, method: str, name: str) -> Owner | None:
        return self.owners.get(method, {}).get(name)


def able(links: Links, method: str) -> list[ServerLink]:
    """The servers that have such a list."""
    return [link for link in links.values() if LISTS[method][0] in link.capabilities]


def merged_capabilities(links: Iterable[ServerLink]) -> Message:
    """Of all servers together. What the gateway does not pass on (tasks, experimental) is left out."""
    merged: Message = {}
    for link in links:
        for name in ("tools", "prompts", "resources", "logging", "completions"):
            announced = link.capabilities.get(name)
            if isinstance(announced, dict):
                here = merged.setdefault(name, {})
                here.update({key: value for key, value in announced.items() if value or key not in here})
    return merged


def merged_instructions(links: Links) -> str | None:
    given = [(link.name, link.told.get("instructions")) for link in links.values()]
    texts = [(name, text) for name, text in given if isinstance(text, str) and text]
    if len(links) == 1:
        return texts[0][1] if texts else None
    return "\n\n".join(f"# {name}\n{text}" for name, text in texts) or None


async def _entries(link: ServerLink, method: str) -> list[Message] | ServerGone:
    try:
        return await link.all_pages(method, LISTS[method][1])
    except Refused as exc:
        if exc.code == METHOD_NOT_FOUND:  # declares resources, say, but has no templates
            return []
        raise
    except ServerAway:  # it has its tools in a moment: a list without them would be wrong
        raise
    except ServerGone as exc:  # its tools are gone; those of the others are there
        return exc


def _unique(listed: list[tuple[str, Message]]) -> list[tuple[str, str, Message]]:
    """(shown name, server, entry). Raises ConfigError if two servers' names cannot be told apart."""
    entries = {(server, entry["name"]): entry for server, entry in reversed(listed)}
    named = unique_names((server, entry["name"]) for server, entry in listed)
    return [(name, identity[0], entries[identity]) for name, identity in named.items()]
