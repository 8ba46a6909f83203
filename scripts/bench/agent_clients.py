"""Agents as a process of their own: conversations with a gateway, over raw HTTP, one connection each.

    python -m scripts.bench.agent_clients --url URL --at-once 64 --number 640   claims attempts at URL, plays and finishes them
    python -m scripts.bench.agent_clients --listen PORT                         plays what `scripts.bench.remote_agent` hands over
    python -m scripts.bench.agent_clients --url URL --number 2000 --hold        claims, prints a line, plays after a line of
                                                                                stdin, prints a line, and stays

A conversation sends its whole history each time, as SDKs do: `--turns` replies, each answered by the user.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

CLAIM_S = 20
QUESTION = {"role": "user", "content": "What is 2+2?"}
GO_ON = {"role": "user", "content": "Go on."}
OPENING_AT_ONCE = 50


class RawConnection:
    """Kept open until it is closed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Mapping[str, Any], key: str = "") -> bytes:
        """The body of the answer. Raises RuntimeError for a status that is no success."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        writer.write(
            f"POST {self._path}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        found = await _read_body(reader, head)
        if not head.startswith("http/1.1 200"):
            raise RuntimeError(f"{path}: {head.splitlines()[0]}: {found[:500]!r}")
        return found

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def _read_body(reader: asyncio.StreamReader, head: str) -> bytes:
    fields = dict(line.split(": ", 1) for line in head.split("\r\n") if ": " in line)
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    found = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        found += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return found


async def converse(connection: RawConnection, offer: Mapping[str, Any], turns: int, *, streamed: bool) -> None:
    messages = [QUESTION]
    for _ in range(turns):
        body = {"model": offer["model"], "messages": messages, "stream": streamed}
        answer = await connection.post("/v1/chat/completions", body, offer["api_key"])
        messages += [{"role": "assistant", "content": _streamed_text(answer) if streamed else _text(answer)}, GO_ON]


def _text(answer: bytes) -> str:
    return str(json.loads(answer)["choices"][0]["message"]["content"])


def _streamed_text(answer: bytes) -> str:
    """Raises RuntimeError for a stream that ends with an error."""
    text = ""
    for line in answer.splitlines():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"a stream ends with {line[:500]!r}")
            text += (event["choices"][0]["delta"].get("content") or "") if event["choices"] else ""
    return text


async def claiming(options: argparse.Namespace) -> None:
    """Attempt after attempt, so many at the same time."""
    numbers = iter(range(options.number))

    async def agent() -> None:
        for _ in numbers:
            asking = RawConnection(options.url)
            offer = json.loads(await asking.post("/claim", {"wait_s": CLAIM_S}))
            asking.close()
            playing, finishing = RawConnection(offer["url"]), RawConnection(options.url)
            await converse(playing, offer, options.turns, streamed=options.streamed)
            playing.close()
            await finishing.post("/finish", {}, offer["api_key"])  # servers close what is idle for a minute
            finishing.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(options.at_once):
            group.create_task(agent())


async def holding(options: argparse.Namespace) -> None:
    places = asyncio.Semaphore(OPENING_AT_ONCE)
    held: list[tuple[RawConnection, Mapping[str, Any]]] = []

    async def opened() -> None:
        async with places:
            connection = RawConnection(options.url)
            held.append((connection, json.loads(await connection.post("/claim", {"wait_s": CLAIM_S}))))

    async def played(connection: RawConnection, offer: Mapping[str, Any]) -> None:
        async with places:
            playing = connection if offer["url"] == options.url else RawConnection(offer["url"])
            await converse(playing, offer, options.turns, streamed=options.streamed)

    await asyncio.gather(*(opened() for _ in range(options.number)))
    _say("claimed")
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(played(*each) for each in held))
    _say("played")
    await asyncio.Event().wait()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def listening(options: argparse.Namespace) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:  # only a look whether this port listens
            writer.close()
            return
        offer = json.loads(line)
        connection = RawConnection(offer["url"])
        await converse(connection, offer, options.turns, streamed=options.streamed)
        connection.close()
        writer.write(b"done\n")
        writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", options.listen, backlog=2048)
    async with server:
        await server.serve_forever()


async def run(options: argparse.Namespace) -> None:
    if options.listen:
        await listening(options)
    else:
        await (holding if options.hold else claiming)(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="where attempts are claimed")
    parser.add_argument("--listen", type=int, default=0, help="a port")
    parser.add_argument("--number", type=int, default=1, help="of conversations")
    parser.add_argument("--at-once", type=int, default=1, help="conversations")
    parser.add_argument("--turns", type=int, default=10, help="of a conversation")
    parser.add_argument("--streamed", action="store_true")
    parser.add_argument("--hold", action="store_true")
    import uvloop

    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
