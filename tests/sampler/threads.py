"""Episodes with threads, and their engine: it keeps what it read, spells as no tokenizer would, and can hold its replies."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar

import httpx

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.scorers import Score
from shared.documents import DispatchedSamplingTask, Record
from shared.documents.states import Termination
from shared.episodes.state import EpisodeState
from shared.store import Store
from tests.sampler.engines import STOP, answer
from tests.sampler.episodes import TEMPLATE, ended, resources
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks

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


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Threaded(AsyncSampler):
    async def evaluate_record(self) -> Score:
        return Score(float(self.claim.traj_id))

    async def ask(self, thread: str | None, *messages: dict[str, Any], **options: Any) -> Turn:
        turn = await self.create_chat_completions(list(messages), thread=thread, **options)
        assert turn is not None
        return turn


async def played(
    store: Store, sampler: type[AsyncSampler], engine: HeldEngine, generations: int = 1, **config: Any
) -> AsyncSampler:
    """A group of episodes, all of them played and settled; the last one's sampler."""
    await import_tasks(store, 1, num_generations=generations)
    async with resources(store, engine, **{"max_turns": 8, **config}) as shared:
        for _ in range(generations):
            engine.prompts.clear()
            engine.outputs.clear()
            playing = sampler(shared, await claim(store))
            assert await play(playing) is not None, (await ended(store, playing))[0].error
        await settle_next(store, "w", shared.config)
    return playing


class Drafts(Threaded):
    """Parallel drafts of two turns each, and a last turn that reads them all."""

    count: ClassVar[int] = 64

    async def run(self) -> Termination:
        drafts = await asyncio.gather(*(self.draft(k) for k in range(self.count)))
        await self.ask(None, user(" ".join(draft.text for draft in drafts)))
        return Termination.ANSWERED

    async def draft(self, k: int) -> Turn:
        await self.ask(f"draft-{k}", user("What is A?"))
        return await self.ask(f"draft-{k}", user(f"Sure, {k}?"))
