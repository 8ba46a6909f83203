"""Episodes that an agent plays through the gateway: a scripted engine, a real database, real HTTP, the clients' own SDKs."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np

from sampler.core.episode.episode import play
from sampler.gateway.agent_sampler import AgentSampler, AgentTask
from shared.documents import DispatchedSamplingTask, Record, Slot
from shared.documents.packed import unpack_ints
from shared.store import Store
from tests.sampler.engines import STOP, answer
from tests.sampler.episodes import TEMPLATE, ended, resources
from tests.shared.builders import claim, import_tasks

END = TEMPLATE.token_id("<|im_end|>") or 0
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
agent_function: Callable[[AgentTask], Awaitable[Any]]  # the agent of the running test


async def the_agent(task: AgentTask) -> Any:
    """`agent` of every test: `tests.sampler.gateway.agents:the_agent`."""
    return await agent_function(task)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def odd_ids(text: str) -> list[int]:
    """Ids that no tokenizer gives for the text, as models sample them. Code that encodes the text again gets other ids."""
    pieces = re.findall(r"</?(?:tool_call|think|answer)>|.{1,2}", text, re.DOTALL)
    return [token for piece in pieces for token in TEMPLATE.encode(piece)]


def stopped(ids: list[int], stops: Sequence[str]) -> tuple[list[int], str | None]:
    """As engines stop: behind the token with which a stop is complete."""
    for count in range(1, len(ids) + 1) if stops else ():
        text = TEMPLATE.decode(ids[:count])
        if found := [stop for stop in stops if stop in text]:
            return ids[:count], found[0]
    return ids, None


class ScriptedEngine:
    """Replies with the texts in order, or with what a function says to the prompt; keeps prompts and replies as ids."""

    def __init__(self, replies: Sequence[str | list[int]] | Callable[[str], str], delay_s: float = 0.0) -> None:
        self._replies = replies
        self._delay_s = delay_s
        self.exchanges: list[tuple[list[int], list[int]]] = []
        self.params: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self.aborted = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            self.aborted.set()
            return httpx.Response(200)
        body = json.loads(request.content)
        prompt, at = body["input_ids"], len(self.exchanges)
        text = self._replies(TEMPLATE.decode(prompt)) if callable(self._replies) else self._replies[at]
        ids = [*(odd_ids(text) if isinstance(text, str) else text), END]
        ids, stop = stopped(ids, body["sampling_params"].get("stop", ()))
        most = body["sampling_params"]["max_new_tokens"]
        self.exchanges.append((prompt, ids[:most]))
        self.params.append(body["sampling_params"])
        self.asked.set()
        await asyncio.sleep(self._delay_s)
        finish = {**STOP, "matched": stop or END} if len(ids) <= most else {"type": "length", "length": most}
        return self._answer(prompt, ids[:most], finish)

    def _answer(self, prompt: list[int], ids: list[int], finish: dict[str, Any]) -> httpx.Response:
        return answer(ids, finish, prompt_tokens=len(prompt))


Ended = tuple[Record, Slot, list[DispatchedSamplingTask]]


async def played(
    store: Store, engine: Any, agent: Callable[[AgentTask], Awaitable[Any]] | None, **options: Any
) -> Ended:
    """The documents of an episode that `agent` (None: the options' own) played. Raises what the agent asserts: as an error after
    a reply it would be scored as the model's act, and no test would see it."""
    failed: list[AssertionError] = []
    watched = None if agent is None else _watched(agent, failed)
    async with an_episode(store, engine, watched, **options) as sampler:
        await play(sampler)
        if failed:
            raise failed[0]
        return await ended(store, sampler)


def _watched(
    agent: Callable[[AgentTask], Awaitable[Any]], failed: list[AssertionError]
) -> Callable[[AgentTask], Awaitable[Any]]:
    async def watched(task: AgentTask) -> Any:
        try:
            return await agent(task)
        except AssertionError as exc:
            failed.append(exc)
            raise

    return watched


@asynccontextmanager
async def an_episode(
    store: Store, engine: Any, agent: Callable[[AgentTask], Awaitable[Any]] | None, **options: Any
) -> AsyncIterator[AgentSampler]:
    global agent_function
    own = {"sampler": "sampler.gateway.agent_sampler:AgentSampler", "max_turns": 20}
    if agent is not None:
        agent_function, own["agent"] = agent, f"{__name__}:the_agent"
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, engine, **(own | options)) as shared:
        yield AgentSampler(shared, await claim(store))


def trained_ids(dispatches: Sequence[DispatchedSamplingTask]) -> list[tuple[list[int], list[int]]]:
    """Prompt and reply of each answered request, put together from the documents as the trainer does."""
    whole: dict[str, list[int]] = {}
    found = []
    for dispatch in dispatches:
        if dispatch.response is None:
            continue
        parent = whole[dispatch.parent][: dispatch.shared_length] if dispatch.parent else []
        prompt = [*parent, *np.asarray(unpack_ints(dispatch.prompt_ids)).tolist()]
        output = np.asarray(unpack_ints(dispatch.response.output_ids)).tolist()
        whole[dispatch.id] = [*prompt, *output]
        found.append((prompt, output))
    return found
