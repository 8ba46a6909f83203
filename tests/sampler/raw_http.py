"""A streamable-HTTP MCP server that answers a call with any bytes: a status, header fields, and pieces of a body.

async with raw_http(answers) as server: ...      # answers: {kind: Answer}; the tool is `say`, with the argument `kind`
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.core.tools import ToolServer

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """`@ID@` in a piece is the id of the call. `ping`: the status that pings get from then on."""

    pieces: Sequence[bytes]
    kind: str = JSON
    status: str = "200 OK"
    fields: Mapping[str, str] | None = None
    ping: str = "200 OK"


def result(request: Any, **fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request, "result": fields}).encode()


def text_answer(text: str = "TEXT") -> bytes:
    return result("@ID@", content=[{"type": "text", "text": text}]).replace(b'"@ID@"', b"@ID@")


def error_answer(code: int, message: str) -> bytes:
    whole = {"jsonrpc": "2.0", "id": "@ID@", "error": {"code": code, "message": message}}
    return json.dumps(whole).encode().replace(b'"@ID@"', b"@ID@")


@contextlib.asynccontextmanager
async def raw_http(answers: Mapping[str, Answer]) -> AsyncIterator[ToolServer]:
    state = {"ping": "200 OK"}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
            )
            sent = json.loads(await reader.readexactly(length)) if length else {}
            answer = _answer_to(sent, answers, state) if head.startswith(b"POST") else Answer([], status="405 No")
            fields = {"Content-Type": answer.kind, "Connection": "close", **(answer.fields or {})}
            lines = [f"HTTP/1.1 {answer.status}", *(f"{name}: {value}" for name, value in fields.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            for piece in answer.pieces:
                writer.write(piece.replace(b"@ID@", json.dumps(sent.get("id")).encode()))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield ToolServer(name="raw", url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")


def _answer_to(sent: dict[str, Any], answers: Mapping[str, Answer], state: dict[str, str]) -> Answer:
    match sent.get("method"):
        case "initialize":
            about = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
            said = result(sent["id"], protocolVersion=sent["params"]["protocolVersion"], **about)
            return Answer([said], fields={"Mcp-Session-Id": "s1"})
        case "tools/list":
            return Answer(
                [result(sent["id"], tools=[{"name": "say", "inputSchema": {"type": "object"}}], nextCursor="")]
            )
        case "tools/call":
            answer = answers[sent["params"]["arguments"]["kind"]]
            state["ping"] = answer.ping
            return answer
        case "ping":
            return Answer([result(sent["id"])], status=state["ping"])
    return Answer([], status="202 Accepted")
