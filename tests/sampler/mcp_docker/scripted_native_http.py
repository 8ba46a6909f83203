"""A server over HTTP that breaks its connections: `scripted_native_http.py PORT [HABIT]…`.

It speaks 2026-07-28, and the handshake to a client that begins with it.

Its tools: `ok` answers, `slow` when GET /go has been asked, `reset` breaks the connection, `half` breaks it within an answer as
JSON, `cut` within an event stream; `stale` is refused as called with wrong headers, as often as GET /stale was asked. GET /told
tells what was seen. `page` is answered with the HTTP status, the content type and the body of its arguments. HABITS:
  changes      it tells changes of its tools
  no-lists     `tools/list` is never answered
  cut-lists    its event stream breaks off
  sessions     the handshake opens a session
"""

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Coroutine
from typing import Any

habits = sys.argv[2:]
told: Counter[str] = Counter()
go = asyncio.Event()
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}}
    for name in ("ok", "slow", "reset", "half", "cut", "stale", "page")
]
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    },
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {"listChanged": "changes" in habits}},
    },
    "tools/list": {"tools": TOOLS},
}
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def write_json(
    writer: StreamWriter, body: bytes, status: str = "200 OK", promised: int = 0, kind: str = "application/json"
) -> None:
    session = "Mcp-Session-Id: of-odd\r\n" if "sessions" in habits else ""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{session}Content-Length: {promised or len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def own_answer(path: str) -> tuple[bytes, str]:
    if path == "/mcp":  # neither a listening stream, nor the end of a session
        return b"", "405 Method Not Allowed"
    if path == "/go":
        go.set()
    if path == "/stale":
        told["stale"] += 1
    return json.dumps(told).encode(), "200 OK"


async def listen(message: Any, reader: StreamReader, writer: StreamWriter) -> None:
    params = {
        "notifications": message["params"]["notifications"],
        "_meta": {"io.modelcontextprotocol/subscriptionId": message["id"]},
    }
    event = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
    writer.write(EVENTS + b"event: message\ndata: " + json.dumps(event).encode() + b"\n\n")
    await reader.read(1)


async def hold(reader: StreamReader) -> None:
    told["held"] += 1
    told["most_held"] = max(told["most_held"], told["held"])
    try:
        await reader.read(1)
    finally:
        told["held"] -= 1


async def cut(writer: StreamWriter) -> None:
    writer.write(EVENTS + b": soon\n\n")
    await writer.drain()


async def call(message: Any, writer: StreamWriter) -> bool:
    """Does the connection go on?"""
    name, number = message["params"]["name"], message["id"]
    body = json.dumps(
        {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": name}]}}
    ).encode()
    if name == "slow":
        told["slow_began"] += 1
        await go.wait()
    if name in ("reset", "half", "cut"):
        if name == "half":
            write_json(writer, body[:20], promised=len(body))
        if name == "cut":
            await cut(writer)
        await writer.drain()
        if name == "reset":
            writer.transport.abort()
        return False
    told[f"{name}_calls"] += 1
    if name == "page":
        given = message["params"]["arguments"]
        page = given["body"].replace("ID", json.dumps(number)).encode()
        write_json(writer, page, given["status"], kind=given["kind"])
    elif name == "stale" and told["stale"]:
        told["stale"] -= 1
        error = {"jsonrpc": "2.0", "id": number, "error": {"code": -32020, "message": "Header mismatch"}}
        write_json(writer, json.dumps(error).encode(), "400 Bad Request")
    else:
        write_json(writer, body)
    return True


def odd_answer(message: Any, reader: StreamReader, writer: StreamWriter) -> Coroutine[Any, Any, None] | None:
    """With which the connection ends."""
    match message["method"]:
        case "subscriptions/listen":
            return listen(message, reader, writer)
        case "tools/list" if "no-lists" in habits:
            return hold(reader)
        case "tools/list" if "cut-lists" in habits:
            return cut(writer)
    return None


async def serve(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if not head.startswith("POST "):
                write_json(writer, *own_answer(head.split()[1]))
                continue
            lengths = [
                line.partition(":")[2] for line in head.splitlines() if line.lower().startswith("content-length")
            ]
            message = json.loads(await reader.readexactly(int(lengths[0])))
            method = message["method"]
            told[method] += 1
            if "id" not in message:
                write_json(writer, b"", "202 Accepted")
                continue
            if (odd := odd_answer(message, reader, writer)) is not None:
                return await odd
            if method == "tools/call":
                if not await call(message, writer):
                    return None
                continue
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS[method]}
            write_json(writer, json.dumps(answer).encode())
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        writer.close()


async def main() -> None:
    await (await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))).serve_forever()


asyncio.run(main())
