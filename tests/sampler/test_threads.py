"""An episode of several conversations, which ask at the same time: exact tokens, forks, own turns."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sampler.core.episode.episode import play
from sampler.core.settlement.advantages import returns
from sampler.core.settlement.groups import ScoredEpisode, ScoredTurn, turn_rewards
from shared.documents import ToolCallResult
from shared.documents.states import BranchCause, DispatchStatus, ParentKind, Termination
from shared.store import Store
from shared.tokens.flatten import tree_of
from tandem.audit.run import Check, audit
from tests.sampler.episodes import ended, resources
from tests.sampler.threads import Drafts, HeldEngine, Threaded, played, user
from tests.shared.builders import claim, import_tasks

# ---------------------------------------------------------------------- parallel drafts


async def test_parallel_drafts_are_stored_trained_and_audited_exactly(store: Store) -> None:
    engine = HeldEngine(at_least=64)
    sampler = await played(store, Drafts, engine, generations=2)
    record, _, dispatches = await ended(store, sampler)
    state = engine.check(record, dispatches)
    assert [d.turn for d in dispatches] == list(range(129)), "every turn has a number of its own"
    assert record.traj == [d.id for d in dispatches]
    assert (record.num_turns, record.num_tokens) == (129, sum(map(len, engine.outputs.values())))
    assert [len(thread.turns) for thread in state.threads] == [2] * 64 + [1]
    for thread in state.threads[:64]:
        first, second = thread.turns
        assert (second.parent, second.kind) == (first.number, ParentKind.BRIDGE), "its own turn, not the last one asked"
    assert max(len(d.while_open) for d in dispatches) == 63
    assert dispatches[-1].while_open == []
    assert sampler.episode.last_reply == "reply 128", "the answer is that of the turn asked last"
    data = (await store.data.find({"record": record.id}))[0]
    tree = tree_of(data, dispatches)
    for k, dispatch in enumerate(data.dispatches):
        nodes = [i for i, source in enumerate(tree.dispatches_N.tolist()) if source == k]
        path = tree.token_ids_N[tree.path(nodes[-1])].tolist()
        assert path == engine.prompts[dispatch.turn] + engine.outputs[dispatch.turn]
    report = await audit(store)
    assert report.ok, report
    assert report.results[Check.COMPLETE].examined == 2
    assert sampler.resources.parent_kinds == {"root": 128, "bridge": 128, "fork": 2}


class Nested(Threaded):
    """A main thread whose tool is an agent of the same policy, which itself asks another one; both at once, twice."""

    async def run(self) -> Termination:
        await self.ask(None, user("Plan."))
        found = await asyncio.gather(self.agent("left", 2), self.agent("right", 2))
        await self.ask(None, user(" and ".join(found)))
        return Termination.ANSWERED

    async def agent(self, name: str, depth: int) -> str:
        await self.ask(name, user(f"You are {name}."))
        told = await self.agent(f"{name}/sub", depth - 1) if depth > 0 else "nothing"
        return (await self.ask(name, user(f"It said: {told}"))).text


async def test_nested_agents_keep_their_own_conversations(store: Store) -> None:
    engine = HeldEngine()
    sampler = await played(store, Nested, engine, generations=2)
    record, _, dispatches = await ended(store, sampler)
    state = engine.check(record, dispatches)
    names = {thread.name for thread in state.threads}
    assert names == {None, *(f"{side}{'/sub' * depth}" for side in ("left", "right") for depth in range(3))}
    assert {len(thread.turns) for thread in state.threads} == {2}
    assert (await audit(store)).ok


# ---------------------------------------------------------------------- forks


class Forks(Threaded):
    """Threads that begin with another thread's history, at every depth, as objects and as copies. Those that go on
    differently share the template's words before what they say."""

    async def run(self) -> Termination:
        opening = user("What is A?")
        first = await self.ask(None, opening)
        second = await self.ask(None, user("Sure?"))
        history = [opening, first.message, user("Sure?"), json.loads(json.dumps(second.message))]
        await self.ask("from the start", opening)
        await self.ask("from the first reply", *history[:2], user("Why?"))
        await self.ask("from the second reply", *history, user("Really?"))
        await self.ask("from the second reply", user("Well?"))
        await self.ask("from a fork", *history[:2], user("Why"), {"role": "assistant", "content": "x"}, user("?"))
        return Termination.ANSWERED


async def test_a_thread_that_begins_with_anothers_history_forks_its_tokens(store: Store) -> None:
    engine = HeldEngine()
    sampler = await played(store, Forks, engine, generations=2)
    record, _, dispatches = await ended(store, sampler)
    state = engine.check(record, dispatches)
    assert [(t.parent, t.kind.value) for t in state.turns] == [
        (None, "root"),
        (0, "bridge"),
        (0, "fork"),
        (1, "fork"),
        (1, "bridge"),
        (4, "bridge"),
        (3, "fork"),
    ]
    assert [d.branch_cause for d in dispatches] == [
        *[BranchCause.CLEAN] * 2,
        *[BranchCause.THREAD] * 2,
        *[BranchCause.CLEAN] * 2,
        BranchCause.THREAD,
    ]
    assert engine.prompts[2] == engine.prompts[0]
    assert engine.prompts[3][len(engine.prompts[0]) :][: len(engine.outputs[0])] == engine.outputs[0]
    assert (await audit(store)).ok


class Alternating(Threaded):
    """Two histories, shown in turns by `restart` in one thread, each with its own replies as copies."""

    rounds: ClassVar[int] = 6

    async def run(self) -> Termination:
        sides = [[user("You are A.")], [user("You are B.")]]
        for k in range(self.rounds):
            side = sides[k % 2]
            turn = await self.ask(None, *json.loads(json.dumps(side)), restart=k > 0)
            side += [{"role": "assistant", "content": turn.text}, user("Go on.")]
        return Termination.ANSWERED


async def test_alternating_histories_lose_no_sampled_id_even_if_both_say_the_same(store: Store) -> None:
    """Both sides get the same words in different ids, which only what was said before can tell apart."""
    engine = HeldEngine(lambda number: "the same words")

    async def other_ids(request: Any) -> Any:
        response = await engine(request)
        body = json.loads(request.content)
        number = int(body["rid"].rpartition("-")[0].rpartition(":")[2]) if "rid" in body else 0
        if number % 2:
            found = response.json()
            whole = [*sampler.resources.template.encode("the same words"), engine.outputs[number][-1]]
            engine.outputs[number] = whole
            found["output_ids"] = whole
            found["meta_info"]["output_token_logprobs"] = [[-token / 100, token, None] for token in whole]
            found["meta_info"]["weight_versions"] = [{"version": "3", "start": 0, "end": len(whole)}]
            response._content = json.dumps(found).encode()
        return response

    await import_tasks(store, 1, num_generations=1)
    async with resources(store, other_ids, max_turns=8) as shared:
        sampler = Alternating(shared, await claim(store))
        assert await play(sampler) is not None
    record, _, dispatches = await ended(store, sampler)
    state = engine.check(record, dispatches)
    assert [turn.parent for turn in state.turns[2:]] == [0, 1, 2, 3]
    assert {turn.kind for turn in state.turns[2:]} == {ParentKind.BRIDGE}
    for number in range(2, 6):
        before = [*engine.prompts[number - 2], *engine.outputs[number - 2]]
        assert engine.prompts[number][: len(before)] == before


# ---------------------------------------------------------------------- turns and their tools


def result(text: str) -> ToolCallResult:
    return ToolCallResult(name="lookup", arguments={}, result=text, is_error=False, duration_s=0.0)


class Tools(Threaded):
    async def run(self) -> Termination:
        left, right = await asyncio.gather(self.ask("left", user("l")), self.ask("right", user("r")))
        self.add_tool_calls([result("of the right")], turn=right)
        await self.ask("right", user("go on"))
        self.add_tool_calls([result("of the left")], turn=left)
        self.mark(DispatchStatus.REPEAT_ERROR, turn=left)
        self.score_turn(left, 0.25)
        with pytest.raises(ValueError, match="the episode has threads: say which reply is meant, by turn="):
            self.add_tool_calls([result("of whom?")])
        with pytest.raises(ValueError, match="is written: its thread has asked again"):
            self.add_tool_calls([result("too late")], turn=right)
        return Termination.ANSWERED


async def test_tool_calls_marks_and_scores_belong_to_the_turn_that_is_named(store: Store) -> None:
    engine = HeldEngine()
    sampler = await played(store, Tools, engine)
    record, _, dispatches = await ended(store, sampler)
    assert [(d.thread, [c.result for c in d.tool_calls]) for d in dispatches] == [
        ("left", ["of the left"]),
        ("right", ["of the right"]),
        ("right", []),
    ]
    assert [d.status.value for d in dispatches] == ["repeaterror", "completed", "completed"]
    state = engine.check(record, dispatches)
    assert (state.num_tool_calls, state.scores) == (2, {dispatches[0].id: 0.25})


def test_a_turns_return_counts_what_was_asked_after_its_reply() -> None:
    """0 and 1 at once, 2 after 0 and while 1 was open, 3 after all; then the same without 3."""
    turns = (
        ScoredTurn("a", 1.0, "", 0),
        ScoredTurn("b", 2.0, "", 1, (0,)),
        ScoredTurn("c", 4.0, "", 2, (1,)),
        ScoredTurn("d", None, "", 3),
    )
    assert turn_rewards(ScoredEpisode("r", 15.0, False, turns), 15.0) == [1.0, 2.0, 4.0, 8.0]
    assert returns(ScoredEpisode("r", 15.0, False, turns), 15.0, 1.0) == [13.0, 10.0, 12.0, 8.0]
    assert returns(ScoredEpisode("r", 15.0, False, turns), 15.0, 0.5) == [1 + 2 + 2, 2 + 4, 4 + 4, 8]
    assert turn_rewards(ScoredEpisode("r", 9.0, False, turns[:3]), 9.0) == [1.0, 3.0, 5.0], "b and c ended it together"


async def test_the_drafts_of_the_page_play(store: Store) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bring" / "custom_samplers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- runs in tests/sampler/test_threads.py -->\n```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs_threads"}
    exec(block, names)
    engine = HeldEngine(lambda number: f"<answer>{4 if number == 8 else 5}</answer>", at_least=4)
    sampler = await played(store, names["Drafts"], engine)
    record, _, dispatches = await ended(store, sampler)
    assert (record.score, record.termination, len(dispatches)) == (1.0, "answered", 9)
    assert [len(thread.turns) for thread in engine.check(record, dispatches).threads] == [2, 2, 2, 2, 1]
