"""Reads the tool servers of an episode: from one URL, or from a standard `mcpServers` JSON.

    "http://gateway:8000/mcp"                                     one streamable-HTTP server, named "manager"
    "http://gateway:8000/sse"                                     one HTTP+SSE server: the URL's path ends in /sse
    "http://gateway:8000/mcpapi"                                  one manager of servers: the URL's path ends in /mcpapi
    "assets/mcp_servers_example.json"                             a file with
    {"mcpServers": {"search": {"url": "http://search:9000/mcp", "headers": {"Authorization": "Bearer ${SEARCH_KEY}"}},
                    "files":  {"command": "${PYTHON}", "args": ["files.py"], "env": {"ROOT": "/data"}, "cwd": "tools"}}}

`${NAME}` is read from the environment, so that secrets stay out of files (also `${NAME:-text}`, `${env:NAME}`:
`shared/configuration/environment_variables.py`); `${PYTHON}` is this interpreter unless set. A
server given only by its URL gets the bearer token in MCP_BEARER_TOKEN, if set; that URL is stored with the run, so it must
not contain a user name, password or query. Logs and records show a server as the file writes it: `${NAME}`.

Besides the standard keys an entry may have `timeout_s` (of its tools), `tool_timeouts_s` ({tool: seconds}), `shared` (stdio:
one process for all episodes), `idempotent_tools` (tools that may be repeated after a transport failure, even if the server does
not declare it), `open_s` (time-out for opening a session) and `max_connections` (of one process to a server given by its URL).
Guide: `docs/bring/tools.md`.
"""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from shared.configuration.environment_variables import expand
from shared.configuration.secrets import configured_secret
from shared.configuration.typed_values import home_path
from shared.errors import ConfigError
from shared.files.json_file import read_json_file
from shared.mcp.auth import ClientCredentials, Method
from shared.mcp.revision import Revision
from shared.processes.guarded import ChildCommand

Transport = Literal["stdio", "http", "sse", "mcpapi"]
Remote = Literal["http", "sse", "mcpapi"]

_COMMON = {"timeout_s", "tool_timeouts_s", "idempotent_tools", "open_s", "revision"}
_REMOTE = {"url", "headers", "transport", "max_connections", "auth"}
_LOCAL = {"command", "args", "env", "cwd", "shared"}
# Keys that other MCP clients write into the same files; ignored here. (`timeout` has no agreed unit.)
_IGNORED = {"type", "transport", "disabled", "description", "autoApprove", "alwaysAllow", "timeout"}
_REMOTE_TRANSPORTS: Mapping[str, Remote] = {
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "sse": "sse",
    "mcpapi": "mcpapi",
}
_LEAST_CONNECTIONS = 4  # for a call, an opening, and a listening stream
_LEAST_SECRET_CHARS = 6  # shorter ones would match ordinary words
_CREDENTIALS = {"issuer", "client_id", "client_secret", "private_key", "algorithm", "method", "scope"}
_TOKEN_VARIABLE = "MCP_BEARER_TOKEN"


@dataclass(frozen=True)
class ToolServer:
    """Either `url` or `command` (stdio: one process per episode, unless `shared`). Both, headers and env may contain secrets.

    `shown`: the address for people: the URL without query and user, or the command line, before `${NAME}` was replaced.
    `timeout_s=None`: the sampler's `tool_timeout_s`; `open_s=None`: its `tool_open_s`. `max_connections`: per process.
    """

    name: str
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    shared: bool = False  # stdio: one process for all episodes of a sampler
    remote: Remote = "http"  # protocol of `url`
    timeout_s: float | None = None
    tool_timeouts_s: Mapping[str, float] = field(default_factory=dict)
    idempotent_tools: frozenset[str] = frozenset()
    open_s: float | None = None
    max_connections: int | None = None
    revision: Revision = "auto"
    auth: ClientCredentials | None = None
    shown: str | None = field(default=None, compare=False)
    episode: str = field(default="", compare=False)  # id of the episode that uses it

    @property
    def transport(self) -> Transport:
        return "stdio" if self.url is None else self.remote

    @property
    def child_command(self) -> ChildCommand:
        """Of a stdio server."""
        return ChildCommand((self.command or "", *self.args), self.env, self.cwd)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for servers that offer the same tools; hashable."""
        pairs = (tuple(sorted(self.headers.items())), tuple(sorted(self.env.items())))
        declared = tuple(sorted(self.idempotent_tools))
        how = (self.transport, self.revision, self.auth, self.shared)
        return (self.name, how, self.url, self.command, self.args, self.cwd, declared, *pairs)

    @property
    def address(self) -> str:
        """The address without secrets, if the server was read by `parse_servers`."""
        return self.shown or self.url or " ".join([self.command or "", *self.args])

    def quoted(self, text: str) -> str:
        """Foreign text about this server (from an HTTP client, or its process), with its URL replaced by the address, and
        without the contents of its headers, `env` and `auth`."""
        if self.url is not None:  # first: it may contain the same secrets
            query = urlsplit(self.url).query
            text = text.replace(self.url, self.address)
            text = text.replace(query, "…") if query else text
        auth_values = (self.auth.client_secret, self.auth.private_key) if self.auth is not None else ()
        for value in (*self.headers.values(), *self.env.values(), *auth_values):
            for secret in (value, value.rpartition(" ")[2]):  # "Bearer TOKEN": also the token alone
                if len(secret) >= _LEAST_SECRET_CHARS:
                    text = text.replace(secret, "…")
        return text

    def call_timeout_s(self, *names: str) -> float | None:
        """The time-out of a tool with these names; None if none is configured."""
        named = (self.tool_timeouts_s[name] for name in names if name in self.tool_timeouts_s)
        return next(named, self.timeout_s)

    def declares_idempotent(self, *names: str) -> bool:
        return not self.idempotent_tools.isdisjoint(names)


def parse_servers(source: str | Path | Mapping[str, Any] | None) -> list[ToolServer]:
    """URL, path of a JSON file, or its parsed contents; None or "" means no server. Raises ConfigError."""
    if not source:
        return []
    if isinstance(source, str) and "://" in source:
        address = _address_of(source, source, "mcp_manager_url")
        if address != source:
            raise ConfigError(
                f"mcp_manager_url: {address} has a user name, password or query, but is stored with the run; put a token into "
                f"{_TOKEN_VARIABLE}, or the URL into an mcpServers JSON, with ${{NAME}} for secrets"
            )
        token = configured_secret(_TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return [ToolServer(name="manager", url=source, headers=headers, remote=_remote_of(source), shown=address)]
    if isinstance(source, Mapping):
        return _from_mapping(source, "mcpServers")
    path = home_path(str(source))
    return _from_mapping(read_json_file(path, "an http(s) URL or an mcpServers JSON"), str(path))


def _from_mapping(content: Any, where: str) -> list[ToolServer]:
    servers = content.get("mcpServers") if isinstance(content, Mapping) else None
    if not isinstance(servers, Mapping):
        raise ConfigError(f'{where}: expected {{"mcpServers": {{NAME: {{"url": …}} or {{"command": …}}}}}}')
    entries = [(str(name), entry, f"{where}: server {name!r}") for name, entry in servers.items()]
    return [_server(name, entry, at) for name, entry, at in entries if not _is_disabled(entry)]


def _is_disabled(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("disabled") is True


def _address_of(url: str, raw: str, where: str) -> str:
    """The URL without user and query. Raises ConfigError, quoting `raw`, if it has no host or an invalid port."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise ConfigError(f"{where}: url is {raw!r}: {exc}") from exc
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{where}: url is {raw!r}; expected http://… or https://…")
    host = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=host if port is None else f"{host}:{port}", query="", fragment="").geturl()


def _server(name: str, entry: Any, where: str) -> ToolServer:
    if not isinstance(entry, Mapping) or ("url" in entry) == ("command" in entry):
        raise ConfigError(f'{where}: expected exactly one of "url" and "command"')
    keys = _COMMON | (_REMOTE if "url" in entry else _LOCAL)
    unknown = sorted(map(str, entry.keys() - keys - _IGNORED))
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected {', '.join(sorted(keys))}")
    _flag(entry, "disabled", where)
    common: dict[str, Any] = {
        "timeout_s": _seconds(entry["timeout_s"], "timeout_s", where) if "timeout_s" in entry else None,
        "tool_timeouts_s": _tool_timeouts_s(entry, where),
        "idempotent_tools": frozenset(_list(entry, "idempotent_tools", where)),
        "open_s": _seconds(entry["open_s"], "open_s", where) if "open_s" in entry else None,
        "revision": _one_of(entry.get("revision", "auto"), get_args(Revision), "revision", where),
    }
    if "command" in entry:
        args = _list(entry, "args", where)
        return ToolServer(
            name=name,
            command=os.path.expanduser(_text(entry, "command", where)),
            args=tuple(_expand(value, where) for value in args),
            shown=" ".join([entry["command"], *args]),
            env=_texts(entry, "env", where),
            cwd=os.path.expanduser(_text(entry, "cwd", where)) if entry.get("cwd") else None,
            shared=_flag(entry, "shared", where),
            **common,
        )
    url = _text(entry, "url", where)
    _address_of(url, entry["url"], where)
    remote = _remote(entry.get("transport", entry.get("type")), url, where)
    headers = _texts(entry, "headers", where)
    auth = _credentials(entry["auth"], f"{where}: auth") if "auth" in entry else None
    if auth is not None and remote == "mcpapi":
        raise ConfigError(f"{where}: auth is for MCP over HTTP; expected headers for a manager")
    if auth is not None and any(name.lower() == "authorization" for name in headers):
        raise ConfigError(f"{where}: auth and an Authorization header are both given; expected one of them")
    return ToolServer(
        name=name,
        url=url,
        headers=headers,
        remote=remote,
        max_connections=_connections(entry, where),
        auth=auth,
        shown=_shown(entry["url"]),
        **common,
    )


def _credentials(entry: Any, where: str) -> ClientCredentials:
    if not isinstance(entry, Mapping) or entry.get("type") != "client_credentials":
        raise ConfigError(
            f'{where}: expected {{"type": "client_credentials", "issuer": …, "client_id": …, "client_secret": …}}'
        )
    unknown = sorted(map(str, entry.keys() - _CREDENTIALS - {"type"}))
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected {', '.join(sorted(_CREDENTIALS))}")
    for key in ("issuer", "client_id"):
        if key not in entry:
            raise ConfigError(f"{where}: {key} is missing; the credentials are sent to this issuer alone")
    if ("client_secret" in entry) == ("private_key" in entry):
        raise ConfigError(f'{where}: expected exactly one of "client_secret" and "private_key"')
    texts = {key: _text(entry, key, where) for key in entry if key != "type"}
    _address_of(texts["issuer"], entry["issuer"], f"{where}: issuer")
    method = _one_of(texts.pop("method", "client_secret_basic"), get_args(Method), "method", where)
    return ClientCredentials(method=method, **texts)


def _one_of(value: Any, known: tuple[str, ...], key: str, where: str) -> Any:
    if value not in known:
        raise ConfigError(f"{where}: {key} is {value!r}; expected one of {', '.join(known)}")
    return value


def _shown(raw: str) -> str:
    """A URL of the file, still with `${NAME}`, without user and query."""
    scheme, _, rest = raw.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}".partition("?")[0]


def _remote(kind: Any, url: str, where: str) -> Remote:
    if kind is None:
        return _remote_of(url)
    if not isinstance(kind, str) or kind not in _REMOTE_TRANSPORTS:
        known = ", ".join(sorted(set(_REMOTE_TRANSPORTS.values())))
        raise ConfigError(f"{where}: transport {kind!r} is not supported; expected one of {known}")
    return _REMOTE_TRANSPORTS[kind]


def _remote_of(url: str) -> Remote:
    match urlsplit(url).path.rstrip("/").rpartition("/")[2]:
        case "mcpapi":
            return "mcpapi"
        case "sse":
            return "sse"
    return "http"


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: {key} is {value!r}; expected a text")
    return _expand(value, where)


def _flag(entry: Mapping[str, Any], key: str, where: str) -> bool:
    value = entry.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{where}: {key} is {value!r}; expected true or false")
    return value is True


def _texts(entry: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    value = entry.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} is {type(value).__name__}; expected an object of texts")
    return {str(name): _expand(_plain(item, f"{key}.{name}", where), where) for name, item in value.items()}


def _list(entry: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = entry.get(key) or []
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {key} is {type(value).__name__}; expected a list of texts")
    return [_plain(item, f"{key}.{index}", where) for index, item in enumerate(value)]


def _plain(value: Any, key: str, where: str) -> str:
    """A text, or a number converted to one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: {key} is {value!r}; expected a text")
    return str(value)


def _tool_timeouts_s(entry: Mapping[str, Any], where: str) -> dict[str, float]:
    value = entry.get("tool_timeouts_s") or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: tool_timeouts_s is {type(value).__name__}; expected {{tool: seconds}}")
    return {str(name): _seconds(item, f"tool_timeouts_s of {name!r}", where) for name, item in value.items()}


def _seconds(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{where}: {key} is {value!r}; expected seconds above 0")
    return float(value)


def _connections(entry: Mapping[str, Any], where: str) -> int | None:
    value = entry.get("max_connections")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < _LEAST_CONNECTIONS):
        raise ConfigError(
            f"{where}: max_connections is {value!r}; expected a whole number from {_LEAST_CONNECTIONS} on"
        )
    return value


def _expand(text: str, where: str) -> str:
    return expand(text, where, {"PYTHON": sys.executable})
