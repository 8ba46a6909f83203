"""A client of gateways that keeps to no order: `python -m tests.sampler.gateway.hostile_client SEED SECONDS FILE URL...`

Agents of one process share the keys that they claimed: they ask, stream, leave, score, finish, give back and ask again at once,
at any gateway, with bodies and keys that are none. FILE gets a line of JSON for each thing that a gateway promised: a claimed
task, a reply, an end.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx

AGENTS = 6
MOST_KEYS = 12
REQUEST_S = 30.0


class HostileClient:
    def __init__(self, seed: int, seconds: float, file: Path, urls: list[str]) -> None:
        self._random = random.Random(seed)
        self._until = time.monotonic() + seconds
        self._urls = urls
        self._told = file.open("a", encoding="utf-8")
        self._offers: list[dict[str, Any]] = []
        self._histories: dict[str, list[dict[str, Any]]] = {}
        self._turns: dict[str, str] = {}  # a reply's id, by record
        self._bodies: dict[str, bytes] = {}  # the last request, by record

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=REQUEST_S, limits=httpx.Limits(max_connections=256)) as self._http:
            await asyncio.gather(*(self._agent() for _ in range(AGENTS)))

    async def _agent(self) -> None:
        steps = [self._claim, self._ask, self._finish, self._score, self._heartbeat, self._garbage]
        while time.monotonic() < self._until:
            (step,) = self._random.choices(steps, [4, 10, 2, 2, 1, 1])
            try:
                await step()
            except httpx.TransportError:
                await asyncio.sleep(0.1)
            except TimeoutError:  # it left
                continue

    def _tell(self, **what: Any) -> None:
        self._told.write(json.dumps(what) + "\n")
        self._told.flush()

    async def _post(self, path: str, body: Any, key: str, **headers: str) -> httpx.Response:
        url = self._random.choice(self._urls)
        given = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self._http.post(url + path, content=content, headers=given)

    def _any(self) -> dict[str, Any] | None:
        return self._random.choice(self._offers) if self._offers else None

    async def _claim(self) -> None:
        if len(self._offers) >= MOST_KEYS:
            self._offers.pop(self._random.randrange(len(self._offers)))  # never finished by this process
        answer = await self._leaving(self._post("/claim", {"wait_s": self._random.choice([0, 0, 2])}, "none"), 0.1)
        if answer.status_code != 200:
            await asyncio.sleep(0.2)
            return
        offer = answer.json()
        self._tell(kind="claim", record=offer["record"])
        self._histories[offer["record"]] = list(offer["messages"])
        self._offers.append(offer)

    async def _ask(self) -> None:
        if (offer := self._any()) is None:
            return
        record, history = offer["record"], self._histories[offer["record"]]
        how = self._random.random()
        messages = history if how < 0.7 else history[: self._random.randrange(1, len(history) + 1)]
        if how > 0.9:
            messages = [*messages, {"role": "user", "content": f"aside {self._random.randrange(3)}"}]
        streamed = self._random.random() < 0.5
        body = json.dumps({"model": "main", "messages": messages, "stream": streamed}).encode()
        headers = {}
        if self._random.random() < 0.3:  # the request before, or this one, as an SDK asks again
            body, headers = self._bodies.get(record, body), {"x-stainless-retry-count": "1"}
        elif self._random.random() < 0.1:
            headers = {"idempotency-key": str(self._random.randrange(3))}
        self._bodies[record] = body
        answer = await self._leaving(self._post("/v1/chat/completions", body, offer["api_key"], **headers), 0.15)
        if answer.status_code == 200:
            self._note_reply(record, body, answer)
        elif answer.status_code == 401:
            self._drop(offer)

    def _note_reply(self, record: str, body: bytes, answer: httpx.Response) -> None:
        asked = json.loads(body)
        if asked["stream"]:
            parts = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            if "data: [DONE]" not in answer.text or any("error" in part for part in parts):
                return
            name = parts[0]["id"]
            text = "".join(one["delta"].get("content") or "" for part in parts for one in part["choices"])
        else:
            name, text = answer.json()["id"], answer.json()["choices"][0]["message"]["content"] or ""
        self._tell(kind="reply", record=record, turn=name.removeprefix("chatcmpl-"), text=text)
        self._turns[record] = name.removeprefix("chatcmpl-")
        self._histories[record] = [
            *asked["messages"],
            {"role": "assistant", "content": text},
            {"role": "user", "content": "Go on."},
        ][-40:]

    async def _finish(self) -> None:
        if (offer := self._any()) is None:
            return
        bodies: list[Any] = [
            {"score": 1},
            {"score": 0.25},
            {"answer": "4"},
            {},
            {"error": "tired"},
            {"give_back": True},
        ]
        times = self._random.choice([1, 1, 2, 3])
        sent = (self._post("/finish", self._random.choice(bodies), offer["api_key"]) for _ in range(times))
        for answer in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(answer, httpx.Response) and answer.status_code == 200:
                self._tell(kind="end", **answer.json())
                if self._random.random() < 0.7:
                    self._drop(offer)

    async def _score(self) -> None:
        if (offer := self._any()) is None:
            return
        turn = self._turns.get(offer["record"]) if self._random.random() < 0.5 else None
        await self._post("/score", {"score": self._random.random(), "turn": turn}, offer["api_key"])

    async def _heartbeat(self) -> None:
        if (offer := self._any()) is not None:
            await self._post("/heartbeat", {}, offer["api_key"])

    async def _garbage(self) -> None:
        offer = self._any()
        key = offer["api_key"] if offer and self._random.random() < 0.5 else "sk-tandem-none"
        body = self._random.choice(
            [self._random.randbytes(50), b'{"messages": 1}', b"[]", b'{"score": "x"}', b"{" * 2000]
        )
        path = self._random.choice(["/finish", "/score", "/claim", "/v1/chat/completions", "/v1/messages", "/x"])
        await self._post(path, body, key if path != "/claim" else "none")

    def _drop(self, offer: dict[str, Any]) -> None:
        if offer in self._offers:
            self._offers.remove(offer)

    async def _leaving(self, request: Any, probability: float) -> httpx.Response:
        """Sometimes the client leaves before it has its answer."""
        limit_s = self._random.uniform(0.01, 0.5) if self._random.random() < probability else REQUEST_S
        async with asyncio.timeout(limit_s):
            answer: httpx.Response = await request
            return answer


if __name__ == "__main__":
    seed, seconds, file, *urls = sys.argv[1:]
    asyncio.run(HostileClient(int(seed), float(seconds), Path(file), urls).run())
