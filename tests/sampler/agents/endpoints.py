"""OpenAI-compatible endpoints over real HTTP with a configured behavior for each request.

async with endpoint("status 500", "judges") as service:      # the first request fails; from the second on it judges
    ... service.url, service.requests
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

REASONS = {400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests", 503: "Unavailable"}
JUDGED = re.compile(r"Labeled answer:\n(.*?)\n\nPredicted answer:\n(.*?)\n\nReply", re.DOTALL)


def judges(prompt: str) -> str:
    """A judge by rule: correct is what holds the labeled answer."""
    match = JUDGED.search(prompt)
    assert match, prompt
    return "Correct" if match[1] in match[2] else "Incorrect"


def summarizes(prompt: str) -> str:
    """The lines of the text that hold a word of the purpose."""
    match = re.search(r"Purpose: (.*?)\n\nText:\n(.*?)\n\nPurpose, once more", prompt, re.DOTALL)
    assert match, prompt
    words = [word.lower().strip(".?") for word in match[1].split() if len(word) > 3]
    return "\n".join(line for line in match[2].splitlines() if any(w in line.lower() for w in words)) or "Nothing."


WELL: dict[str, Callable[[str], str]] = {"judges": judges, "summarizes": summarizes}


@dataclass
class Service:
    """`requests`: (headers, body) of each request."""

    behaviors: list[str]
    url: str = ""
    requests: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    def prompts(self) -> list[str]:
        return [body["messages"][-1]["content"] for _, body in self.requests]

    async def answer(self, writer: asyncio.StreamWriter, headers: dict[str, str], body: dict[str, Any]) -> None:
        behavior = self.behaviors[min(len(self.requests), len(self.behaviors) - 1)]
        self.requests.append((headers, body))
        kind, _, argument = behavior.partition(" ")
        if kind in WELL:
            return await send(writer, completion(WELL[kind](body["messages"][0]["content"])))
        if kind == "says":
            return await send(writer, completion(argument))
        if kind == "raw":
            return await send(writer, argument.encode())
        if kind == "status":
            status, _, retry_after = argument.partition(" retry-after ")
            key = headers.get("authorization", "").removeprefix("Bearer ")
            error = json.dumps({"error": {"message": f"told to fail; your key is {key}"}}).encode()
            return await send(writer, error, int(status), retry_after)
        return await BAD[behavior](writer)


def completion(text: str | None, finish: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    usage = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


async def send(
    writer: asyncio.StreamWriter, body: bytes, status: int = 200, retry_after: str = "", kind: str = "application/json"
) -> None:
    extra = f"retry-after: {retry_after}\r\n" if retry_after else ""
    head = f"HTTP/1.1 {status} {REASONS.get(status, 'X')}\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def drip(writer: asyncio.StreamWriter) -> None:
    """Sends single bytes, so that no read times out."""
    body = completion("Correct")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    for at in range(len(body)):
        writer.write(body[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0.05)  # the misbehavior itself


async def cut(writer: asyncio.StreamWriter) -> None:
    """Half of the promised body, then the end of the connection."""
    body = completion("Correct")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    writer.write(body[: len(body) // 2])
    await writer.drain()
    writer.close()


BAD: dict[str, Callable[[asyncio.StreamWriter], Any]] = {
    "hangs": hang,
    "closes": close,
    "drips": drip,
    "is cut": cut,
    "garbage": lambda w: send(w, b"<html>Bad gateway</html>", kind="text/html"),
    "half JSON": lambda w: send(w, completion("Correct")[:40]),
    "no text": lambda w: send(w, completion(None)),
    "blank": lambda w: send(w, completion("<think>hm</think>\n ")),
    "no choices": lambda w: send(w, b'{"choices": []}'),
    "a list": lambda w: send(w, b"[1, 2]"),
    "aborted": lambda w: send(w, completion("Correct", "abort")),
}


@asynccontextmanager
async def endpoint(*behaviors: str) -> AsyncIterator[Service]:
    """One behavior per request; the last one goes on."""
    service = Service(list(behaviors))
    connections: set[asyncio.Task[Any]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while not writer.is_closing():
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:]) if k}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await service.answer(writer, headers, json.loads(body))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield service
    finally:
        server.close()
        left = list(connections)
        for task in left:
            task.cancel()
        await asyncio.gather(*left)
