"""An engine that samples nothing: SGLang's HTTP API with prepared replies, for benchmarks and for tests of its surroundings.

    python -m scripts.bench.stub_engine --model-path DIR [--port 30000] [--tokens 20] [--turns 10] [--tool-call JSON]
                                  [--token-ms 0] [--fail 500 | --fail hang]

Turn 1 … turns-1 are answered with a tool call (or plain text), the last turn with `<answer>…</answer>`; every reply has exactly
`--tokens` tokens, words and log-probs like a real model's (`scripts.bench.replies`; 64 different replies take turns), and the
version that was set last. A request takes `--token-ms` per token. `GET /stats` counts.
Requests may ask for a stream. `/v1/chat/completions` answers clients of other projects, with the same replies as text.
"""

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop
from tokenizers import Tokenizer

from scripts.bench.prepared_replies import PreparedReply, prepared_reply
from scripts.bench.replies import draw_ids, draw_logprobs

TURN_END = "<|im_end|>"
REPLIES = 64
MOST_REQUESTS = 4096
TURN_IN_RID = re.compile(rb'"rid": ?"[^"]*:(\d+)-[0-9a-f]{32}"')
INPUT_IDS = re.compile(rb'"input_ids": ?\[([^\]]*)\]')
STREAM_INTERVAL = re.compile(rb'"stream_interval": ?(\d+)')
LOGPROBS = re.compile(rb'"logprobs": ?true')
STREAMED = re.compile(rb'"stream": ?true')


def prepare(tokenizer: Tokenizer, text: str, n_tokens: int) -> list[PreparedReply]:
    """`text` behind as many words as make `n_tokens`, the end of the turn included. Raises ValueError if it is too long."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    room = n_tokens - len(ids) - 1
    if room < 0:
        raise ValueError(f"{text!r} has {len(ids)} tokens and an end of turn; expected at most {n_tokens}")
    rng = np.random.default_rng(n_tokens)
    words = draw_ids(rng, word_ids(tokenizer), REPLIES * room).reshape(REPLIES, room).tolist()
    logprobs = draw_logprobs(rng, REPLIES * n_tokens).reshape(REPLIES, n_tokens).tolist()
    end_id = tokenizer.token_to_id(TURN_END)
    assert end_id is not None, "the bundled model's tokenizer has it"
    end = [*ids, end_id]
    return [
        prepared_reply([*row, *end], scores, tokenizer.decode([*row, *ids]))
        for row, scores in zip(words, logprobs, strict=True)
    ]


def word_ids(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Tokens that are a word of letters and the blank before it, in the order of the vocabulary."""
    ids = (i for token, i in tokenizer.get_vocab().items() if token.startswith("Ġ") and token[1:].isalpha())
    return np.array(sorted(ids), dtype=np.int64)


class StubEngine:
    def __init__(self, model_path: Path, options: argparse.Namespace) -> None:
        tokenizer = Tokenizer.from_file(str(model_path / "tokenizer.json"))
        self._steps = cycle(prepare(tokenizer, options.tool_call or "1", options.tokens))
        self._lasts = cycle(prepare(tokenizer, "<answer>4</answer>", options.tokens))
        self._options = options
        self._model_path = str(model_path)
        self._version = "0"
        self._running = 0
        self._counts: Counter[str] = Counter()
        self._routes: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "/generate": self._generate,
            "/v1/chat/completions": self._complete,
            "/update_weights_from_disk": self._update,
            "/model_info": self._info,
            "/server_info": self._server_info,
            "/v1/loads": self._loads,
            "/stats": self._stats,
        }

    async def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and JSON body. What has no route (pause, continue, abort, health) is answered with success."""
        self._counts[path] += 1
        if path == "/generate" and self._options.fail == "hang":
            await asyncio.Event().wait()
        if path == "/generate" and self._options.fail:
            return int(self._options.fail), b'{"error": {"message": "told to fail"}}'
        route = self._routes.get(path)
        return 200, await route(body) if route else b'{"success": true}'

    def is_streamed(self, path: str, body: bytes) -> bool:
        return path == "/generate" and not self._options.fail and STREAMED.search(body) is not None

    async def events(self, body: bytes) -> AsyncIterator[bytes]:
        """A streamed reply: events that each hold all tokens before, every `stream_interval` tokens."""
        self._counts["/generate"] += 1
        prompt_tokens, reply = self._prepared_for(body)
        interval, tokens = STREAM_INTERVAL.search(body), self._options.tokens
        step = int(interval[1]) if interval else 1
        with self._one_more():
            began = asyncio.get_running_loop().time()
            for count in range(step, tokens, step):
                await self._until(began, count)
                yield reply.event(count, prompt_tokens, self._version)
            await self._until(began, tokens)
        self._counts["tokens"] += tokens
        yield b"data: %s\n\n" % reply.body(prompt_tokens, self._version)
        yield b"data: [DONE]\n\n"

    async def _until(self, began: float, tokens: int) -> None:
        if self._options.token_ms:
            due = began + self._options.token_ms * tokens / 1000
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def _generate(self, body: bytes) -> bytes:
        prompt_tokens, reply = self._prepared_for(body)
        await self._take_time()
        return reply.body(prompt_tokens, self._version)

    async def _complete(self, body: bytes) -> bytes:
        await self._take_time()
        return next(self._steps).completion(len(body), with_logprobs=LOGPROBS.search(body) is not None)

    def _prepared_for(self, body: bytes) -> tuple[int, PreparedReply]:
        turn_match, ids = TURN_IN_RID.search(body), INPUT_IDS.search(body)
        turn = int(turn_match[1]) if turn_match else 0
        prompt_tokens = ids[1].count(b",") + 1 if ids else 0
        return prompt_tokens, next(
            self._lasts if turn % self._options.turns == self._options.turns - 1 else self._steps
        )

    async def _take_time(self) -> None:
        if self._options.token_ms:
            with self._one_more():
                await asyncio.sleep(self._options.token_ms * self._options.tokens / 1000)
        self._counts["tokens"] += self._options.tokens

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def _update(self, body: bytes) -> bytes:
        update = json.loads(body)
        self._version, self._model_path = str(update["weight_version"]), update["model_path"]
        return b'{"success": true, "message": "ok"}'

    async def _info(self, _: bytes) -> bytes:
        return _json({"model_path": self._model_path, "weight_version": self._version})

    async def _server_info(self, _: bytes) -> bytes:
        return _json({"context_length": 1 << 20, "max_running_requests": MOST_REQUESTS, "version": "stub"})

    async def _loads(self, _: bytes) -> bytes:
        load = {"num_running_reqs": self._running, "num_waiting_reqs": 0, "token_usage": self._running / MOST_REQUESTS}
        return _json({"loads": [load]})

    async def _stats(self, _: bytes) -> bytes:
        return _json({**self._counts, "running": self._running})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


async def serve(engine: StubEngine, port: int) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
                body = await reader.readexactly(int(lengths[0])) if lengths else b""
                path = lines[0].split()[1]
                if engine.is_streamed(path, body):
                    await _stream(writer, engine.events(body))
                    continue
                status, answer = await engine.answer(path, body)
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % (status, len(answer))
                )
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", port, limit=1 << 20, backlog=2048)
    async with server:
        await server.serve_forever()


async def _stream(writer: asyncio.StreamWriter, events: AsyncIterator[bytes]) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    async for event in events:
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, required=True, help="whose tokenizer the replies are written in")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tokens", type=int, default=20, help="of every reply")
    parser.add_argument("--turns", type=int, default=10, help="the last of so many is an answer")
    parser.add_argument("--tool-call", default="", help="text of every reply but the last")
    parser.add_argument("--token-ms", type=float, default=0.0, help="time per token of a running request")
    parser.add_argument("--fail", default="", help="answer /generate with this status, or never: hang")
    options = parser.parse_args()
    uvloop.run(serve(StubEngine(options.model_path, options), options.port))


if __name__ == "__main__":
    main()
