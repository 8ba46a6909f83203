"""Engines at the transport: answers of a real SGLang (`data/sglang_answers.json`), and a scripted one with its rules."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ANSWERS: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "sglang_answers.json").read_text())


def recorded(name: str) -> httpx.Response:
    found = ANSWERS[name]
    if "json" in found:
        return httpx.Response(found["status"], json=found["json"])
    return httpx.Response(found["status"], text=found.get("text", ""))


def answer(
    ids: list[int],
    finish: dict[str, Any],
    version: str = "3",
    prompt_tokens: int = 4,
    logprobs: Sequence[float] | None = None,
) -> httpx.Response:
    """In the shape of `generate_length`; without `logprobs`, token t has log-prob -t / 100."""
    scores = [-token / 100 for token in ids] if logprobs is None else logprobs
    meta = {
        "finish_reason": finish,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": 2,
        "weight_version": version,
        "output_token_logprobs": [[score, token, None] for score, token in zip(scores, ids, strict=True)],
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
    }
    return httpx.Response(200, json={"output_ids": ids, "meta_info": meta})


STOP = {"type": "stop", "matched": 9}
LENGTH = {"type": "length", "length": 8}
ABORT = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

Behavior = Callable[[httpx.Request], Awaitable[httpx.Response]]


@dataclass
class Engines:
    """Several engines behind one transport: `behaviors` by host; every request is kept, by host and path."""

    behaviors: dict[str, Behavior] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        self.seen.append((request.url.host, request.url.path, body))
        if request.url.path == "/abort_request":
            return httpx.Response(200, text="")
        return await self.behaviors[request.url.host](request)

    def bodies(self, path: str = "/generate") -> list[dict[str, Any]]:
        return [body for _, seen, body in self.seen if seen == path]

    def hosts(self, path: str = "/generate") -> list[str]:
        return [host for host, seen, _ in self.seen if seen == path]


@dataclass
class Up:
    """One registered service."""

    url: str
    running: int = 0
    capacity: int = 10
    version: int = 3
    status: str = "UP"
    adapter: str | None = None
