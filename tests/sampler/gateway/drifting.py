"""Conversations that change their own histories, an engine with random replies, and what the trainer makes of the episode."""

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from sampler.core.episode.episode import play
from sampler.gateway.agent_sampler import AgentTask
from shared.documents import DispatchedSamplingTask, Record
from shared.store import Store
from shared.tokens.flatten import answered, flatten
from tests.sampler.engines import answer
from tests.sampler.episodes import TEMPLATE, ended
from tests.sampler.gateway.agents import ADD, ScriptedEngine, an_episode, call, odd_ids

Message = dict[str, Any]
Rng = random.Random
STEPS = 5  # requests of a conversation
MOST = 1 << 20  # tokens of a context
SAYINGS = ["Hello.", "It is 3.", "I add, now.", "I see: é 🙂", "Done.\n\nBye. "]


class RandomEngine(ScriptedEngine):
    """Few different texts, as odd ids or as a tokenizer's, and random log-probs, so that no two replies have the same ones.
    `delays`: some replies take a while."""

    def __init__(self, rng: Rng, *, delays: bool = False) -> None:
        super().__init__(lambda prompt: self._reply())
        self._rng, self._delays = rng, delays
        self.sampled: dict[tuple[float, ...], tuple[list[int], list[int]]] = {}  # prompt and reply, by the log-probs

    def _reply(self) -> Any:
        rng = self._rng
        thought = rng.choice(["", "<think>\nI add.\n</think>\n\n"])
        calls = [call("add", a=rng.randint(1, 3), b=rng.randint(1, 3)) for _ in range(rng.choice([0, 1, 1, 2]))]
        text = thought + "\n".join([rng.choice(SAYINGS), *calls])
        if rng.random() < 0.1:
            text = text.replace("</tool_call>", "")  # malformed
        return rng.choice([odd_ids, TEMPLATE.encode])(text)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self._delays:
            self._delay_s = self._rng.choice([0.0, 0.05])
        return await super().__call__(request)

    def _answer(self, prompt: list[int], ids: list[int], finish: dict[str, Any]) -> httpx.Response:
        logprobs = np.float32([-self._rng.random() for _ in ids]).tolist()
        self.sampled[tuple(logprobs)] = (prompt, ids)
        return answer(ids, finish, prompt_tokens=len(prompt), logprobs=logprobs)


@dataclass
class DriftingConversation:
    """One history of an agent over Chat Completions. A kind of drift changes `messages` before a request."""

    client: httpx.AsyncClient
    rng: Rng
    messages: list[Message] = field(default_factory=list)

    def begin(self, name: str = "") -> None:
        self.messages = [
            {"role": "system", "content": f"You add.\nBe brief.{name}"},
            {"role": "user", "content": "1+2?"},
        ]

    async def ask(self, headers: dict[str, str] | None = None) -> Message:
        body = {"model": "main", "tools": [ADD], "messages": self.messages, "stream": self.rng.random() < 0.3}
        response = await self.client.post("/v1/chat/completions", json=body, headers=headers, timeout=120)
        assert response.status_code == 200, response.text
        return streamed(response.text) if body["stream"] else dict(response.json()["choices"][0]["message"])

    async def half_read(self) -> None:
        """Leave a stream after its first bytes."""
        body = {"model": "main", "tools": [ADD], "messages": self.messages, "stream": True}
        with_stream = self.client.stream("POST", "/v1/chat/completions", json=body, timeout=120)
        try:
            async with asyncio.timeout(self.rng.choice([0.01, 0.03, 5])), with_stream as response:
                await anext(response.aiter_bytes(10))
        except TimeoutError:
            pass

    def go_on(self, reply: Message) -> None:
        """Keep the reply, give its calls results, or say something new."""
        self.messages.append(reply)
        for one in reply.get("tool_calls") or ():
            content = str(self.rng.randint(2, 6))
            self.messages.append({"role": "tool", "tool_call_id": one["id"], "content": content})
        if not reply.get("tool_calls"):
            self.messages.append({"role": "user", "content": self.rng.choice(["And then?", "Again: 1+2?"])})

    def replies(self) -> list[Message]:
        return [message for message in self.messages if message["role"] == "assistant"]


def streamed(text: str) -> Message:
    """The message that a client puts together from the chunks."""
    found: Message = {"role": "assistant", "content": ""}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    found[name] = found.get(name, "") + delta[name]
            for part in delta.get("tool_calls") or ():
                calls = found.setdefault("tool_calls", [])
                if part["index"] == len(calls):
                    calls.append(copy.deepcopy(part))
                else:
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return found


# ---------------------------------------------------------------------- kinds of drift, each before a request

Drift = Callable[[DriftingConversation], Awaitable[None]]
DRIFTS: dict[str, Drift] = {}


def drift(function: Drift) -> Drift:
    DRIFTS[function.__name__.replace("_", " ")] = function
    return function


@drift
async def none(talk: DriftingConversation) -> None:
    pass


@drift
async def rewritten_text(talk: DriftingConversation) -> None:
    if talk.replies():
        talk.rng.choice(talk.replies())["content"] = "It is what I never said."


@drift
async def reordered_json(talk: DriftingConversation) -> None:
    for reply in talk.replies():
        for one in reply.get("tool_calls") or ():
            found = json.loads(one["function"]["arguments"])
            one["function"]["arguments"] = json.dumps(dict(reversed(found.items())), indent=talk.rng.choice([None, 2]))


@drift
async def dropped_reasoning(talk: DriftingConversation) -> None:
    for reply in talk.replies():
        reply.pop("reasoning_content", None)


@drift
async def whitespace(talk: DriftingConversation) -> None:
    for reply in talk.replies():
        reply["content"] = talk.rng.choice(["", " ", "\n"]) + (reply.get("content") or "").strip() + "\n"


@drift
async def text_in_blocks(talk: DriftingConversation) -> None:
    for reply in talk.replies():
        if isinstance(reply.get("content"), str):
            reply["content"] = [{"type": "text", "text": reply["content"]}]


@drift
async def truncated_history(talk: DriftingConversation) -> None:
    later = [at for at, message in enumerate(talk.messages) if message["role"] == "assistant"]
    if len(later) > 1:
        del talk.messages[1 : talk.rng.choice(later)]


@drift
async def compaction(talk: DriftingConversation) -> None:
    if len(talk.messages) > 4:
        talk.messages[1:] = [{"role": "user", "content": f"So far: {talk.rng.randint(1, 9)}. And 3+4?"}]


@drift
async def edited_system_prompt(talk: DriftingConversation) -> None:
    talk.messages[0]["content"] = f"You add.\nBe brief. It is {talk.rng.randint(1, 12)} o'clock."


@drift
async def parallel_sub_agents(talk: DriftingConversation) -> None:
    """They may open with the same words as each other, and as the agent itself."""
    others = [DriftingConversation(talk.client, Rng(talk.rng.random())) for _ in range(3)]
    for other in others:
        other.begin(talk.rng.choice(["", " Quickly.", " Slowly."]))
    await asyncio.gather(*(conversed(other, none, 2) for other in others))


@drift
async def second_samples(talk: DriftingConversation) -> None:
    await talk.ask()


@drift
async def retries(talk: DriftingConversation) -> None:
    """A key that is sent twice is one request."""
    key = {"Idempotency-Key": str(talk.rng.random())}
    state = talk.rng.getstate()
    reply = await talk.ask(key)
    talk.rng.setstate(state)  # the same body
    assert await talk.ask(key) == reply
    talk.go_on(reply)


@drift
async def half_read_streams(talk: DriftingConversation) -> None:
    await talk.half_read()


@drift
async def all_of_them(talk: DriftingConversation) -> None:
    await talk.rng.choice([function for name, function in DRIFTS.items() if name != "all of them"])(talk)


async def conversed(talk: DriftingConversation, kind: Drift, steps: int = STEPS) -> None:
    for _ in range(steps):
        if talk.rng.random() < 0.6:
            await kind(talk)
        talk.go_on(await talk.ask())


# ---------------------------------------------------------------------- an episode, and what is trained of it


@dataclass
class Drifted:
    """Of one episode, or of many. `wrong`: sampled tokens that are not trained in the context in which they were sampled;
    `flat`, `tree`: tokens of all requests and replies, one by one and as a tree."""

    requests: int = 0
    sampled: int = 0
    wrong: int = 0
    flat: int = 0
    tree: int = 0
    causes: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Drifted") -> None:
        for name in ("requests", "sampled", "wrong", "flat", "tree"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.causes += other.causes


async def drifted(store: Store, kind: str, seed: int) -> Drifted:
    engine = RandomEngine(Rng(seed), delays=kind in ("half read streams", "all of them"))
    record, dispatches = await episode_of(store, engine, lambda talk: conversed(talk, DRIFTS[kind]), seed)
    found = compared(dispatches, engine)
    found.causes.update({name.removeprefix("agent_"): int(count) for name, count in record.metrics.items()})
    return found


async def episode_of(
    store: Store, engine: RandomEngine, conversation: Callable[[DriftingConversation], Awaitable[None]], seed: int
) -> tuple[Record, Sequence[DispatchedSamplingTask]]:
    async def agent(task: AgentTask) -> float:
        headers = {"Authorization": f"Bearer {task.api_key}"}
        async with httpx.AsyncClient(base_url=task.url, headers=headers) as client:
            talk = DriftingConversation(client, Rng(seed))
            talk.begin()
            await conversation(talk)
        return 1.0

    async with an_episode(store, engine, agent, max_turns=200, max_tokens=MOST, max_prompt_tokens=MOST) as player:
        await play(player)
        record, _, dispatches = await ended(store, player)
    assert record.error is None, record.error
    return record, dispatches


def compared(dispatches: Sequence[DispatchedSamplingTask], engine: RandomEngine) -> Drifted:
    """The tree that is trained against what the engine sampled."""
    used = answered(dispatches)
    tree = flatten("r", dispatches, dict.fromkeys((one.id for one in dispatches), 1.0))
    found = Drifted(requests=len(used), tree=tree.num_tokens)
    seen: set[tuple[float, ...]] = set()
    for number in range(len(used)):
        nodes = np.flatnonzero((tree.dispatches_N == number) & tree.trained_N)
        logprobs = tuple(tree.logprobs_N[nodes].tolist())
        path = tree.path(int(nodes[-1])) if len(nodes) else nodes
        prompt, reply = engine.sampled.get(logprobs, ([], []))
        same = [*prompt, *reply] == tree.token_ids_N[path].tolist() and path[-len(nodes) :].tolist() == nodes.tolist()
        found.sampled += len(logprobs)
        found.flat += len(path)
        found.wrong += 0 if same and logprobs not in seen else len(logprobs)
        seen.add(logprobs)
    return found
