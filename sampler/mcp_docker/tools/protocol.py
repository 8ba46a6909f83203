"""MCP for a server that has tools alone: messages in, messages out. Streams are `serving`'s.

MCP-Docker has a server process per session, so the bundled tools do without the SDK's server, and import nothing of it. On two
slow cores that one took 2.2 ms of processor time a call, and 63 MB to fork; this one 0.26 ms and 33 MB, with the calculator.
`tests/sampler/mcp_docker/test_bundled_protocol.py` asks both the same questions, and uses the SDK's client.

Served: the handshake's revisions (`initialize`, `ping`) and 2026-07-28 (`server/discover`, an envelope in every request); a
connection has one of them, as its first request says. Both: `tools/list`, `tools/call`, `notifications/cancelled`.
"""

import json
from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
RequestKey = int | str
# The SDK's own lists, `mcp_types.version`, take 0.4 s to import; a test compares them.
HANDSHAKE_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ENVELOPE_REVISIONS = ("2026-07-28",)
PARSE_FAILED, BAD_REQUEST, UNKNOWN_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
INTERNAL, CONNECTION_CLOSED, UNKNOWN_REVISION = -32603, -32000, -32022
_PREFIX = "io.modelcontextprotocol/"
_REVISION_KEY, _CAPABILITIES_KEY = f"{_PREFIX}protocolVersion", f"{_PREFIX}clientCapabilities"
_MOST_KEY_CHARS = 256


class ProtocolError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, why: str, data: Any = None) -> None:
        super().__init__(why)
        self.code, self.data = code, data


class ToolProtocol:
    """One connection. `listed`: the tools as `tools/list` shows them."""

    def __init__(self, name: str, listed: list[JsonObject]) -> None:
        self._info = {"name": name, "version": "1"}
        self._listed = listed
        self._has_handshake = False
        self._has_envelopes = False

    def result(self, method: str, params: JsonObject) -> JsonObject | None:
        """Of a request; None: it is a call, for `called`, whose result becomes `complete`. Raises ProtocolError."""
        self._require_revision(method, params)
        match method:
            case "initialize":
                return self._initialized(params)
            case "ping" if not self._has_envelopes:
                return {}
            case "server/discover" if self._has_envelopes:
                discovery = {"supportedVersions": list(ENVELOPE_REVISIONS), "capabilities": self._capabilities}
                return self._lasting(discovery)
            case "tools/list":
                return self._lasting({"tools": self._listed})
            case "tools/call":
                return None
        raise ProtocolError(UNKNOWN_METHOD, "Method not found", method)

    def complete(self, result: JsonObject) -> JsonObject:
        """A result in the words of the connection's revision."""
        if not self._has_envelopes:
            return result
        return {**result, "resultType": "complete", "_meta": {f"{_PREFIX}serverInfo": self._info}}

    def _lasting(self, result: JsonObject) -> JsonObject:
        return self.complete({**result, "ttlMs": 0, "cacheScope": "private"} if self._has_envelopes else result)

    @property
    def _capabilities(self) -> JsonObject:
        return {"tools": {"listChanged": False}}

    def _initialized(self, params: JsonObject) -> JsonObject:
        revision = params.get("protocolVersion")
        client = params.get("clientInfo")
        if not (
            isinstance(revision, str)
            and isinstance(params.get("capabilities"), dict)
            and isinstance(client, dict)
            and isinstance(client.get("name"), str)
            and isinstance(client.get("version"), str)
        ):
            why = "expected protocolVersion, capabilities, and clientInfo with name and version"
            raise ProtocolError(BAD_PARAMS, f"Invalid request parameters: {why}")
        self._has_handshake = True
        return {
            "protocolVersion": revision if revision in HANDSHAKE_REVISIONS else HANDSHAKE_REVISIONS[-1],
            "capabilities": self._capabilities,
            "serverInfo": self._info,
        }

    def _require_revision(self, method: str, params: JsonObject) -> None:
        """The connection's first request decides; `ping` may come before."""
        meta = params.get("_meta")
        envelope = meta if isinstance(meta, dict) and _REVISION_KEY in meta else None
        if self._has_handshake:
            if envelope is not None:
                why = "this connection had the handshake; it takes no requests with the envelope of a later revision"
                raise ProtocolError(BAD_REQUEST, why)
        elif envelope is not None or self._has_envelopes:
            self._require_envelope(method, envelope)
        elif method not in ("initialize", "ping"):
            raise ProtocolError(BAD_PARAMS, "Invalid request parameters: expected initialize before other requests")

    def _require_envelope(self, method: str, envelope: JsonObject | None) -> None:
        if envelope is None or not isinstance(envelope.get(_CAPABILITIES_KEY), dict):
            if method == "initialize" and self._has_envelopes:
                raise _unknown_revision("this connection serves 2026-07-28, which has no handshake")
            raise ProtocolError(BAD_PARAMS, f"params._meta has no {_REVISION_KEY} and {_CAPABILITIES_KEY}")
        revision = envelope[_REVISION_KEY]
        if not isinstance(revision, str):
            raise ProtocolError(BAD_PARAMS, f"params._meta: {_REVISION_KEY} is not a text")
        if revision not in ENVELOPE_REVISIONS:
            raise _unknown_revision("Unsupported protocol version", revision)
        self._has_envelopes = True
        if method == "initialize":
            raise _unknown_revision("this connection serves 2026-07-28, which has no handshake")


def _unknown_revision(why: str, revision: str | None = None) -> ProtocolError:
    data: JsonObject = {"supported": list(ENVELOPE_REVISIONS)}
    return ProtocolError(UNKNOWN_REVISION, why, data if revision is None else {**data, "requested": revision})


def called(params: JsonObject) -> tuple[str, JsonObject]:
    """Name and arguments of a `tools/call`. Raises ProtocolError."""
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str):
        raise ProtocolError(BAD_PARAMS, "Invalid request parameters: name is not a text")
    if arguments is not None and not isinstance(arguments, dict):
        raise ProtocolError(BAD_PARAMS, "Invalid request parameters: arguments is not an object")
    return name, arguments or {}


def parsed_line(line: bytes) -> JsonObject | None:
    """A message; None: nothing that can be answered. Raises ProtocolError for a text that is not JSON."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(PARSE_FAILED, f"Parse error: {str(exc)[:200]}") from exc
    return parsed if isinstance(parsed, dict) and parsed.get("jsonrpc") == "2.0" else None


def key_of(message: Mapping[str, Any]) -> RequestKey | None:
    key = message.get("id")
    if isinstance(key, str):
        return key if len(key) <= _MOST_KEY_CHARS else None
    return key if isinstance(key, int) and not isinstance(key, bool) else None


def text_result(text: str, is_error: bool = False) -> JsonObject:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def answered(key: RequestKey, result: JsonObject) -> bytes:
    return _line({"jsonrpc": "2.0", "id": key, "result": result})


def failed(key: RequestKey | None, error: ProtocolError) -> bytes:
    body: JsonObject = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    return _line({"jsonrpc": "2.0", "id": key, "error": body})


def _line(message: JsonObject) -> bytes:
    """Half of a surrogate pair in a text becomes a question mark: it has no bytes."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
