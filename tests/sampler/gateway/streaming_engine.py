"""An engine on a socket that streams: each token is an event that repeats those before, and waits at a gate where told to."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.sampler.gateway.agents import END, odd_ids


class StreamingEngine:
    """Replies with the texts in order. Request `waits_in` waits for `gate` after the text `waits_after`, and with `dies`
    hangs up there."""

    def __init__(self, replies: Sequence[str], waits_after: str = "", waits_in: int = 0, *, dies: bool = False) -> None:
        self._replies = replies
        self._waits_after, self._waits_in, self._dies = waits_after, waits_in, dies
        self.exchanges: list[tuple[list[int], list[int]]] = []
        self.gate, self.aborted = asyncio.Event(), asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                size = next((line for line in head.lower().split("\r\n") if line.startswith("content-length:")), ":0")
                body = json.loads(await reader.readexactly(int(size.partition(":")[2])) or b"{}")
                if " /abort_request " in head:
                    self.aborted.set()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                elif not await self._generate(body, writer):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has hung up
        finally:
            writer.close()

    async def _generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        number = len(self.exchanges)
        text = self._replies[number]
        ids = [*odd_ids(text), END]
        waits_at = len(odd_ids(self._waits_after)) if number == self._waits_in and self._waits_after else None
        self.exchanges.append((body["input_ids"], ids))
        assert body["stream"] is True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for count in range(1, len(ids) + 1):
            self._event(writer, body, ids[:count], count == len(ids))
            if count == waits_at:
                await writer.drain()
                if self._dies:
                    return False
                await self.gate.wait()
        for end in (b"data: [DONE]\n\n", b""):
            writer.write(b"%x\r\n%s\r\n" % (len(end), end))
        return True

    def _event(self, writer: asyncio.StreamWriter, body: dict[str, Any], ids: list[int], is_last: bool) -> None:
        meta: dict[str, Any] = {
            "finish_reason": {"type": "stop", "matched": END} if is_last else None,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "weight_version": "3",
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        }
        event = b"data: %s\n\n" % json.dumps({"output_ids": ids, "meta_info": meta}).encode()
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))


@asynccontextmanager
async def listening(engine: StreamingEngine) -> AsyncIterator[StreamingEngine]:
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = "http://127.0.0.1:{}".format(*server.sockets[0].getsockname()[1:2])
    try:
        yield engine
    finally:
        engine.gate.set()
        server.close()
