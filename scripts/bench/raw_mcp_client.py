"""One MCP session over a socket, by hand: a client that costs a tenth of the SDK's.

python -m scripts.bench.raw_mcp_client PORT NUMBER      opens so many, prints "open", and waits to be killed
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

_START = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class RawSession:
    """Keeps one connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._id = ""
        self._number = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._listening: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        headers, _ = await self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _START})
        self._id = f"Mcp-Session-Id: {headers['mcp-session-id']}\r\n"

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        params = {"name": name, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        found: dict[str, Any] = json.loads((await self._post(message))[1])["result"]
        return found

    async def listen(self) -> None:
        """Hold a listening stream open, as most clients do: its breaking off tells the gateway that the client is gone."""
        head = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{self._id}\r\n"
        reader, self._listening = await asyncio.open_connection("127.0.0.1", self._port)
        self._listening.write(head.encode())
        await reader.readuntil(b"\r\n\r\n")

    async def end(self) -> None:
        await self._send("DELETE", "/mcp", b"")
        self.drop()

    async def health(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await self._send("GET", "/health", b""))[1])
        self.drop()
        return found

    def drop(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if self._listening is not None:
            self._listening.close()

    async def _post(self, message: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
        return await self._send("POST", "/mcp", json.dumps(message).encode())

    async def _send(self, method: str, path: str, body: bytes) -> tuple[dict[str, str], bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json, text/event-stream\r\n"
        head += f"{self._id}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        found = await reader.readexactly(int(headers["content-length"]))
        if status.split()[1] not in ("200", "202"):
            raise RuntimeError(f"{method} {path}: {status}: {found[:500]!r}")
        return headers, found


async def main() -> None:
    sessions = [RawSession(int(sys.argv[1])) for _ in range(int(sys.argv[2]))]
    await asyncio.gather(*(session.open() for session in sessions))
    calls = [asyncio.create_task(session.call("calculate", {"expression": "6*7"})) for session in sessions]
    await asyncio.gather(*calls)
    await asyncio.gather(*(session.listen() for session in sessions[::2]))  # the others end by their lease
    sys.stdout.write("open\n")
    sys.stdout.flush()
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
