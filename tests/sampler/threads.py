"""An engine for episodes with threads: it keeps what it read, spells its replies as no tokenizer would, and can hold them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

from shared.documents import DispatchedSamplingTask, Record
from shared.episodes.state import EpisodeState
from tests.sampler.engines import STOP, answer
from tests.sampler.episodes import TEMPLATE

END = TEMPLATE.token_id("<|im_end|>") or 0


def spelled(text: str) -> list[int]:
    """Ids that the tokenizer would not produce: one character at a time."""
    return [i for character in text for i in TEMPLATE.encode(character)]


class HeldEngine:
    """`says` gives the reply to a turn's number. Replies wait until `at_least` requests have come (in all)."""

    def __init__(self, says: Callable[[int], str] = "reply {}".format, at_least: int = 0) -> None:
        self.says = says
        self.at_least = at_least
        self.prompts: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.refused: set[int] = set()  # turns that fail
        self.silent: set[int] = set()  # turns that are never answered
        self._came = asyncio.Condition()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            return httpx.Response(200)
        body: dict[str, Any] = json.loads(request.content)
        number = int(body["rid"].rpartition("-")[0].rpartition(":")[2])
        async with self._came:
            self.prompts[number] = body["input_ids"]
            self._came.notify_all()
            await self._came.wait_for(lambda: len(self.prompts) >= self.at_least and number not in self.silent)
        if number in self.refused:
            return httpx.Response(400, json={"error": {"message": "refused by the test"}})
        self.outputs[number] = [*spelled(self.says(number)), END]
        return answer(self.outputs[number], {**STOP, "matched": END}, version="3", prompt_tokens=len(body["input_ids"]))

    async def until_asked(self, count: int) -> None:
        async with self._came:
            await self._came.wait_for(lambda: len(self.prompts) >= count)

    async def wake(self) -> None:
        """After a change of `silent`."""
        async with self._came:
            self._came.notify_all()

    def check(self, record: Record, dispatches: list[DispatchedSamplingTask]) -> EpisodeState:
        """What the documents say that the engine read and sampled is what it read and sampled."""
        state = EpisodeState(record, dispatches)
        assert state.problems == []
        for turn in state.turns:
            assert state.prompt_of(turn.number) == self.prompts[turn.number], turn.number
            assert turn.output_ids == self.outputs.get(turn.number, []), turn.number
        return state
