"""Names under which the model may call tools, and allow and deny lists.

A tool keeps its own name; a name used by several servers is prefixed with `server_`. Entries of allow and deny lists:

    read_file  write_*         the tool's own name
    left_read_file  left_*     the name prefixed with its server, shown so or not
    files.read_file  files.*   server and tool, matched separately: `files.*` is never a tool `files.delete` of another server

`*` and `?` stand for any text and any character; every other character stands for itself. Deny wins, and matches more widely:
an entry with a dot also matches a tool's own name, and, with several servers, a pattern also matches prefixed names.

Promise: entries without effect are reported. An allowed entry without a matching tool is an error; so is a denied name,
unless its tool was offered earlier in this process. A denied pattern without a match is a warning; so is an allowed entry
whose tools are all denied. Each message names the nearest tools.
"""

import difflib
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from sampler.core.errors import ToolNotOffered
from sampler.core.tools.offered import OfferedTool
from shared.errors import ConfigError
from shared.mcp.names import Identity, dotted, prefix, prefixed, unique_names

log = logging.getLogger(__name__)

_WILDCARDS = {"*": ".*", "?": "."}


def named_tools(tools: Sequence[OfferedTool]) -> dict[str, OfferedTool]:
    """Tools by shown name, in the servers' order. Raises ConfigError if prefixes do not make two names distinct."""
    first = {tool.identity: tool for tool in reversed(tools)}  # some servers list a tool twice
    return {name: first[identity] for name, identity in unique_names(tool.identity for tool in tools).items()}


def chosen(
    named: Mapping[str, OfferedTool],
    allow: Collection[str] | None,
    exclude: Collection[str],
    *,
    several_servers: bool = True,
    offered_before: Collection[Identity] = (),
) -> dict[str, OfferedTool]:
    """The tools that are allowed (None: all) and not excluded. Raises ConfigError for an entry that can have no effect."""
    offered = [tool.identity for tool in named.values()]

    def is_denied(identity: Identity) -> bool:
        return any(_denies(entry, identity, several_servers) for entry in exclude)

    for entry in exclude if named else ():
        if not any(_denies(entry, identity, several_servers) for identity in (*offered, *offered_before)):
            _log_useless_denial(entry, offered)
    for entry in allow or ():
        fitting = [identity for identity in offered if _fits(identity, entry)]
        if not fitting:
            raise ToolNotOffered(f"tool {entry!r} is allowed, but not offered; {_nearest(entry, offered)}")
        _require_one_meaning(entry, fitting)
        if all(map(is_denied, fitting)):
            _warn_once(f"tool {entry!r} is allowed, but all of its matches are denied by {', '.join(sorted(exclude))}")
    return {
        name: tool
        for name, tool in named.items()
        if (allow is None or any(_fits(tool.identity, entry) for entry in allow)) and not is_denied(tool.identity)
    }


def log_useless_settings(key: str, entries: Collection[str], server: str, offered: Sequence[Identity]) -> None:
    """Warn of entries of a server's `key` (time-outs, idempotent tools) that match none of its tools."""
    names = {name for _, name in offered} | {dotted(identity) for identity in offered}
    for entry in sorted(set(entries) - names):
        _warn_once(f"server {server!r}: {key} names {entry!r}, which it does not offer; {_nearest(entry, offered)}")


def _fits(identity: Identity, entry: str) -> bool:
    server, tool = identity
    if "." in entry:
        return any(_matches(server, left) and _matches(tool, right) for left, right in _parts(entry))
    head = re.split(r"[*?]", entry)[0]
    return _matches(tool, entry) or (head.startswith(prefix(server)) and _matches(prefixed(identity), entry))


def _denies(entry: str, identity: Identity, several_servers: bool) -> bool:
    if _fits(identity, entry) or _matches(identity[1], entry):
        return True
    return several_servers and _matches(prefixed(identity), entry)


def _parts(entry: str) -> Iterator[tuple[str, str]]:
    """Possible splits into server and tool: both may contain dots."""
    for match in re.finditer(r"\.", entry):
        yield entry[: match.start()], entry[match.end() :]


def _matches(name: str, entry: str) -> bool:
    return name == entry or _pattern(entry).fullmatch(name) is not None


@lru_cache(maxsize=1024)
def _pattern(entry: str) -> re.Pattern[str]:
    return re.compile("".join(_WILDCARDS.get(char) or re.escape(char) for char in entry), re.DOTALL)


def _require_one_meaning(entry: str, fitting: Sequence[Identity]) -> None:
    """`left_read` may be the tool `read` of `left` or a tool `left_read` of another server, which must not be allowed with it."""
    if {True, False} == {tool == entry for _, tool in fitting} and not _WILDCARDS.keys() & set(entry):
        both = " or ".join(map(dotted, fitting))
        raise ConfigError(f"tool {entry!r} is allowed, and may be {both}; write which one")


def _log_useless_denial(entry: str, offered: Sequence[Identity]) -> None:
    problem = f"tool {entry!r} is denied, but not offered; {_nearest(entry, offered)}"
    if not _WILDCARDS.keys() & set(entry):
        raise ToolNotOffered(f"{problem}. Correct or remove it; a pattern (`{entry}*`) may match nothing")
    _warn_once(problem)


@lru_cache(maxsize=1024)
def _warn_once(message: str) -> None:
    """Once per process, not per episode."""
    log.warning(message)


def _nearest(entry: str, offered: Sequence[Identity]) -> str:
    spelled = {form: dotted(each) for each in offered for form in (each[1], prefixed(each), dotted(each))}
    close = difflib.get_close_matches(entry, spelled, n=3, cutoff=0.5)
    if close:
        return f"the nearest offered: {', '.join(dict.fromkeys(spelled[form] for form in close))}"
    return f"the servers offer {', '.join(map(dotted, offered)) or 'none'}"
