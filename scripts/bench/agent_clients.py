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
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import uvloop

from scripts.bench.raw_http import RawConnection

CLAIM_S = 20
QUESTION = {"role": "user", "content": "What is 2+2?"}
GO_ON = {"role": "user", "content": "Go on."}
OPENING_AT_ONCE = 50


class AgentConnection:
    """With the gateway at a URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/")
        self._raw = RawConnection(parts.hostname or "", parts.port or 80)

    async def post(self, path: str, body: Mapping[str, Any], key: str = "") -> bytes:
        headers = f"Authorization: Bearer {key}\r\n"
        return (await self._raw.send("POST", self._path + path, json.dumps(body).encode(), headers))[1]

    def close(self) -> None:
        self._raw.close()


async def converse(connection: AgentConnection, offer: Mapping[str, Any], turns: int, *, streamed: bool) -> None:
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
            with closing(AgentConnection(options.url)) as claims:
                offer = json.loads(await claims.post("/claim", {"wait_s": CLAIM_S}))
            with closing(AgentConnection(offer["url"])) as conversation:
                await converse(conversation, offer, options.turns, streamed=options.streamed)
            with closing(AgentConnection(options.url)) as ends:  # a new one: servers close what is idle for a minute
                await ends.post("/finish", {}, offer["api_key"])

    async with asyncio.TaskGroup() as group:
        for _ in range(options.at_once):
            group.create_task(agent())


async def holding(options: argparse.Namespace) -> None:
    places = asyncio.Semaphore(OPENING_AT_ONCE)
    held: list[tuple[AgentConnection, Mapping[str, Any]]] = []

    async def opened() -> None:
        async with places:
            connection = AgentConnection(options.url)
            held.append((connection, json.loads(await connection.post("/claim", {"wait_s": CLAIM_S}))))

    async def played(connection: AgentConnection, offer: Mapping[str, Any]) -> None:
        async with places:
            playing = connection if offer["url"] == options.url else AgentConnection(offer["url"])
            await converse(playing, offer, options.turns, streamed=options.streamed)

    await asyncio.gather(*(opened() for _ in range(options.number)))
    _write_line("claimed")
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(played(*each) for each in held))
    _write_line("played")
    await asyncio.Event().wait()


def _write_line(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def listening(options: argparse.Namespace) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:  # a probe whether this port listens
            writer.close()
            return
        offer = json.loads(line)
        with closing(AgentConnection(offer["url"])) as connection:
            await converse(connection, offer, options.turns, streamed=options.streamed)
        writer.write(b"done\n")
        writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", options.listen, backlog=2048)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="where attempts are claimed")
    parser.add_argument("--listen", type=int, default=0, help="a port")
    parser.add_argument("--number", type=int, default=1, help="of conversations")
    parser.add_argument("--at-once", type=int, default=1, help="conversations")
    parser.add_argument("--turns", type=int, default=10, help="of a conversation")
    parser.add_argument("--streamed", action="store_true")
    parser.add_argument("--hold", action="store_true")
    options = parser.parse_args()
    play = listening if options.listen else holding if options.hold else claiming
    uvloop.run(play(options))


if __name__ == "__main__":
    main()
