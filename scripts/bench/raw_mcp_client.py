"""An MCP session by hand.

python -m scripts.bench.raw_mcp_client PORT NUMBER      opens so many, writes "open", and waits to be killed
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from scripts.bench.raw_http import RawConnection

_START = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class RawSession:
    """Keeps one connection, and another one while it listens."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = RawConnection("127.0.0.1", port)
        self._id = ""
        self._number = 0
        self._listening: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        headers, _ = await self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _START})
        self._id = f"Mcp-Session-Id: {headers['mcp-session-id']}\r\n"

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        params = {"name": name, "arguments": arguments}
        _, answer = await self._post({"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params})
        result: dict[str, Any] = json.loads(answer)["result"]
        return result

    async def listen(self) -> None:
        """Hold a listening stream open, as most clients do: its breaking off tells the gateway that the client is gone."""
        head = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{self._id}\r\n"
        reader, self._listening = await asyncio.open_connection("127.0.0.1", self._port)
        self._listening.write(head.encode())
        await reader.readuntil(b"\r\n\r\n")

    async def end(self) -> None:
        await self._connection.send("DELETE", "/mcp", headers=self._id)
        self.drop()

    def drop(self) -> None:
        self._connection.close()
        if self._listening is not None:
            self._listening.close()

    async def _post(self, message: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
        headers = f"Accept: application/json, text/event-stream\r\n{self._id}"
        return await self._connection.send("POST", "/mcp", json.dumps(message).encode(), headers)


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
