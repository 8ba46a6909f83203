"""Which tool servers an episode connects to: from one URL, or from a standard `mcpServers` JSON.

    "http://manager:8000/mcp"                                     one streamable-HTTP server, named "manager"
    "assets/mcp_servers.json"                                     a file with
    {"mcpServers": {"search": {"url": "http://search:9000/mcp", "headers": {"Authorization": "Bearer ${SEARCH_KEY}"}},
                    "files":  {"command": "${PYTHON}", "args": ["files.py"], "env": {"ROOT": "/data"}, "cwd": "tools"}}}

`${NAME}` is read from the environment, so that secrets stay out of files; `${PYTHON}` is this interpreter unless set.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

_REMOTE = {"url", "headers"}
_LOCAL = {"command", "args", "env", "cwd"}
# Written by other MCP clients into the same files; they mean nothing here.
_IGNORED = {"type", "transport", "disabled", "description", "autoApprove", "alwaysAllow", "timeout"}
_HTTP_TYPES = (None, "http", "streamable-http", "streamableHttp", "streamable_http")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class ToolServer:
    """Either `url` (streamable HTTP) or `command` (stdio: one process per episode). Headers and env may hold secrets."""

    name: str
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal servers; hashable."""
        pairs = (tuple(sorted(self.headers.items())), tuple(sorted(self.env.items())))
        return (self.name, self.url, self.command, self.args, self.cwd, *pairs)

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        return self.url or " ".join([self.command or "", *self.args])


def parse_servers(source: str | Path | Mapping[str, Any] | None) -> list[ToolServer]:
    """URL, path of a JSON file, or its parsed contents; None or "" is no server at all. Raises ConfigError."""
    if not source:
        return []
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return [ToolServer(name="manager", url=source)]
    if isinstance(source, Mapping):
        return _from_mapping(source, "mcpServers")
    path = Path(source)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"{path}: cannot be read ({exc.strerror}); expected an http(s) URL or an mcpServers JSON"
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: not JSON: {exc}") from exc
    return _from_mapping(found, str(path))


def _from_mapping(found: Any, where: str) -> list[ToolServer]:
    servers = found.get("mcpServers") if isinstance(found, Mapping) else None
    if not isinstance(servers, Mapping):
        raise ConfigError(f'{where}: expected {{"mcpServers": {{NAME: {{"url": …}} or {{"command": …}}}}}}')
    entries = [(str(name), entry, f"{where}: server {name!r}") for name, entry in servers.items()]
    return [_server(name, entry, at) for name, entry, at in entries if not _is_disabled(entry)]


def _is_disabled(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("disabled") is True


def _server(name: str, entry: Any, where: str) -> ToolServer:
    if not isinstance(entry, Mapping) or ("url" in entry) == ("command" in entry):
        raise ConfigError(f'{where}: expected exactly one of "url" and "command"')
    keys = _REMOTE if "url" in entry else _LOCAL
    if unknown := sorted(map(str, entry.keys() - keys - _IGNORED)):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected {', '.join(sorted(keys))}")
    if "command" in entry:
        return ToolServer(
            name=name,
            command=_text(entry, "command", where),
            args=tuple(_expand(str(value), where) for value in entry.get("args", ())),
            env=_texts(entry, "env", where),
            cwd=_text(entry, "cwd", where) if entry.get("cwd") else None,
        )
    kind = entry.get("transport", entry.get("type"))
    if kind not in _HTTP_TYPES:
        raise ConfigError(f"{where}: transport {kind!r} is not supported; serve it over streamable HTTP")
    url = _text(entry, "url", where)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{where}: url is {url!r}; expected http://… or https://…")
    return ToolServer(name=name, url=url, headers=_texts(entry, "headers", where))


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: {key} is {value!r}; expected a text")
    return _expand(value, where)


def _texts(entry: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    value = entry.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} is {type(value).__name__}; expected an object of texts")
    return {str(name): _expand(str(text), where) for name, text in value.items()}


def _expand(text: str, where: str) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        value = os.environ.get(name, sys.executable if name == "PYTHON" else None)
        if value is None:
            raise ConfigError(f"{where}: environment variable {name} is not set")
        return value

    return _VARIABLE.sub(value_of, text)
