"""An episode of several conversations, which ask at the same time: exact tokens, own turns, nothing left open."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sampler.episode import play
from sampler.history.conversation import Conversation
from sampler.sampler import AsyncSampler, Turn
from sampler.scorers import Score
from sampler.settlement.advantages import returns
from sampler.settlement.groups import ScoredEpisode, ScoredTurn, turn_rewards
from sampler.settlement.settle import settle_next
from shared.audit.run import Check, audit
from shared.documents import ToolCallResult
from shared.documents.states import BranchCause, DispatchStatus, ParentKind, RecordStatus, SlotStatus, Termination
from shared.episodes.state import EpisodeState
from shared.errors import ConfigError, OwnCodeFailed
from shared.store import Store
from shared.tokens.flatten import tree_of
from tests.sampler.episodes import ended, resources
from tests.sampler.threads import HeldEngine
from tests.shared.builders import claim, import_tasks, let_time_pass


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


# ---------------------------------------------------------------------- parallel drafts


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


# ---------------------------------------------------------------------- what is refused


class Twice(Threaded):
    async def run(self) -> Termination:
        await asyncio.gather(self.ask("a", user("l")), self.ask("a", user("r")))
        return Termination.ANSWERED


class Repeating(Threaded):
    """The whole history, as many chat APIs want it, in one of two threads."""

    async def run(self) -> Termination:
        opening = [{"role": "system", "content": "Be brief."}, user("yes")]
        turn = await self.ask("a", *opening)
        await self.ask("b", *opening)
        await self.ask("a", user("yes"))  # a user may say the same short thing twice
        await self.ask("a", *opening, turn.message, user("yes"))
        return Termination.ANSWERED


class Nameless(Threaded):
    async def run(self) -> Termination:
        with pytest.raises(ValueError, match="thread is ''; expected a name of at most 200 characters"):
            await self.ask("", user("l"))
        raise ConfigError("seen")


@pytest.mark.parametrize(
    ("sampler", "text", "asked"),
    [
        (Twice, "thread 'a' of policy main waits for a reply already: await it first, or give each parallel", 1),
        (
            Repeating,
            "messages repeat what was sent: message 3 of 4 is the model's own reply 1; send only what is new",
            3,
        ),
        (Repeating, "(policy main, thread a)", 3),
        (Nameless, "seen", 0),
    ],
)
async def test_a_misuse_of_threads_fails_the_slot_with_the_remedy(
    store: Store, sampler: type[AsyncSampler], text: str, asked: int
) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, HeldEngine()) as shared:
        playing = sampler(shared, await claim(store))
        assert await play(playing) is None
    record, slot, dispatches = await ended(store, playing)
    assert (slot.status, record.termination) == (SlotStatus.FAILED, "misconfigured")
    assert text in (record.error or "")
    assert len(dispatches) == asked
    assert not EpisodeState(record, dispatches).open_turns


class Forgetful(Threaded):
    engine: ClassVar[HeldEngine]

    async def run(self) -> Termination:
        self.forgotten = asyncio.create_task(self.ask("a", user("l")))
        await self.ask(None, user("r"))
        await self.engine.until_asked(2)
        return Termination.ANSWERED


async def test_an_episode_that_ends_with_an_open_request_is_refused_and_the_request_cancelled(store: Store) -> None:
    engine = Forgetful.engine = HeldEngine()
    engine.silent = {1}
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, engine) as shared:
        playing = Forgetful(shared, await claim(store))
        with pytest.raises(OwnCodeFailed, match="returned while thread 'a' of policy main waits for a reply"):
            await play(playing)
        with contextlib.suppress(asyncio.CancelledError):
            await playing.forgotten
        assert playing.forgotten.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await playing.ask("b", user("after the end"))
    record, slot, dispatches = await ended(store, playing)
    assert (slot.status, record.status.value) == (SlotStatus.OPEN, "abandoned")
    assert [d.status.value for d in dispatches] == ["completed", "cancelled"]


class OneFails(Threaded):
    async def run(self) -> Termination:
        await asyncio.gather(*(self.ask(f"d{k}", user(str(k))) for k in range(8)))
        return Termination.ANSWERED


async def test_after_a_failure_of_one_thread_the_others_ask_nothing_and_nothing_stays_open(store: Store) -> None:
    engine = HeldEngine(at_least=8)
    engine.refused, engine.silent = {3}, {0, 1, 2, 4, 5, 6, 7}
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, engine) as shared:
        playing = OneFails(shared, await claim(store))
        assert await play(playing) is None
        asking = [task for task in asyncio.all_tasks() if "Threaded.ask" in str(task.get_coro())]
        assert asking == []
        assert len(engine.prompts) == 8
    record, slot, dispatches = await ended(store, playing)
    assert (record.termination, slot.status) == ("engine_failure", SlotStatus.OPEN)
    assert {d.status for d in dispatches} == {DispatchStatus.FAILED}
    assert "refused by the test" in (dispatches[3].error or "")


# ---------------------------------------------------------------------- a request that is cancelled


class Racing(Threaded):
    """The first of two drafts to come is taken, and the other one cancelled; its thread goes on later."""

    engine: ClassVar[HeldEngine]

    async def run(self) -> Termination:
        racing = [asyncio.create_task(self.ask(name, user("Run!"))) for name in ("slow", "fast")]
        await racing[1]
        await self.engine.until_asked(2)
        racing[0].cancel()
        await asyncio.gather(*racing, return_exceptions=True)
        self.engine.silent.clear()
        turn = await self.ask("slow", user("Run!"))
        await self.ask("slow", user(f"You said {turn.text}."))
        return Termination.ANSWERED


async def test_a_cancelled_request_leaves_its_thread_as_it_was(store: Store) -> None:
    engine = Racing.engine = HeldEngine()
    engine.silent = {0}
    sampler = await played(store, Racing, engine)
    record, _, dispatches = await ended(store, sampler)
    state = engine.check(record, dispatches)
    assert [(d.thread, d.status.value) for d in dispatches] == [
        ("slow", "failed"),
        ("fast", "completed"),
        ("slow", "completed"),
        ("slow", "completed"),
    ]
    assert engine.prompts[0] == engine.prompts[2], "the same request again"
    assert [turn.parent for turn in state.turns] == [None, None, 1, 2], "what was never answered is no turn's parent"
    assert (await audit(store, running=True)).ok


# ---------------------------------------------------------------------- state, scores, context policies


class Compared(Drafts):
    """Compares the state built from the documents with what the sampler itself holds, while the record is running."""

    count = 5

    async def draft(self, k: int) -> Turn:
        turn = await super().draft(k)
        self.score_turn(turn, k / 10)
        return turn

    async def evaluate_record(self) -> Score:
        found = await self.resources.store.records.dispatches_of([self.claim.record_id])
        record = await self.resources.store.records.get(self.claim.record_id)
        assert record is not None
        state = EpisodeState(record, found[record.id])
        assert record.status.value == "running"
        assert state.open_turns == []
        assert [turn.dispatch.id for turn in state.turns] == self.episode.dispatches
        assert state.scores == self.episode.turn_scores
        assert state.num_tokens == self.episode.num_tokens
        assert {(thread.policy, thread.name) for thread in state.threads} == self._views.keys()
        for thread in state.threads:
            view = self._views[thread.policy, thread.name]
            last = thread.turns[-1]
            assert view.last_dispatch == last.dispatch.id
            assert view.context.ids == state.prompt_of(last.number)
            assert state.ids_of(last.number) == [*view.context.ids, *last.output_ids]
            assert view._reply is not None
            assert view._reply.output_ids == last.output_ids
        assert {turn.number: turn.reply for turn in state.turns} == self.episode.replies
        return await super().evaluate_record()


async def test_the_state_built_from_the_documents_is_the_samplers_own(store: Store) -> None:
    await played(store, Compared, HeldEngine())


class TwoTalks(Threaded):
    """Two conversations at once, each under a context policy of its own."""

    async def run(self) -> Termination:
        await asyncio.gather(self.talk("left"), self.talk("right"))
        return Termination.ANSWERED

    async def talk(self, thread: str) -> None:
        talk = Conversation(self, [user(f"You are {thread}. " + "x" * 60)], [], thread=thread)
        for _ in range(4):
            turn = await talk.reply()
            assert turn is not None
            assert not talk.is_repetition(turn)
            talk.answer(turn, [user("Go on. " + "y" * 60)])


async def test_conversations_in_threads_have_context_policies_of_their_own(store: Store) -> None:
    engine = HeldEngine(lambda number: f"reply {number} " + "z" * 30, at_least=2)
    options = {"new_context": "discard_all", "context_budget_tokens": 250, "max_tokens": 700, "max_new_tokens": 100}
    sampler = await played(store, TwoTalks, engine, **options)
    record, _, dispatches = await ended(store, sampler)
    state = engine.check(record, dispatches)
    causes = Counter((d.thread, d.branch_cause) for d in dispatches)
    assert causes["left", BranchCause.CONTEXT_POLICY] > 0
    assert causes["right", BranchCause.CONTEXT_POLICY] > 0
    for thread in state.threads:
        other = "right" if thread.name == "left" else "left"
        for turn in thread.turns:
            assert f"You are {other}" not in sampler.resources.template.decode(engine.prompts[turn.number])
    assert len(sampler.episode.replies) == 8, "summaries are no answers"
    assert (await audit(store, running=True)).ok


async def test_a_scorer_reads_threads_one_after_the_other(store: Store) -> None:
    class Two(Drafts):
        count = 2

    sampler = await played(store, Two, HeldEngine())
    said = [message["content"] for message in sampler.conversation]
    assert said[:4] == ["What is A?", "reply 0", "Sure, 0?", "reply 2"]
    assert said[4:] == ["What is A?", "reply 1", "Sure, 1?", "reply 3", "reply 2 reply 3", "reply 4"]


# ---------------------------------------------------------------------- incomplete episodes


async def test_a_sampler_that_dies_in_the_middle_of_one_thread_is_replaced_and_its_late_writes_change_nothing(
    store: Store,
) -> None:
    """One thread's request is open while another goes on; the process stops there, and wakes up when all is over."""
    engine = HeldEngine()
    engine.silent = {0}
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, engine, max_turns=8) as shared:
        dead = Uneven(shared, await claim(store))
        dead_one = asyncio.create_task(play(dead))
        await engine.until_asked(3)
        await let_time_pass(store)
        living = HeldEngine()
        async with resources(store, living) as others:
            again = await claim(store, "other")
            assert again.attempt == 2
            assert await play(Uneven(others, again)) is not None
            await settle_next(store, "other", others.config)
        record, _, dispatches = await ended(store, dead)
        assert record.status is RecordStatus.ABANDONED
        assert [d.status for d in dispatches if d.thread == "slow"] == [DispatchStatus.CANCELLED]
        engine.silent.clear()
        await engine.wake()
        assert await dead_one is None
    (data,) = await store.data.find({})
    assert data.record == again.record_id
    record, _, dispatches = await ended(store, dead)
    assert record.status is RecordStatus.ABANDONED
    report = await audit(store)
    assert report.ok, report


class Uneven(Threaded):
    async def run(self) -> Termination:
        await asyncio.gather(self.ask("slow", user("s")), self.two())
        return Termination.ANSWERED

    async def two(self) -> None:
        await self.ask("fast", user("f"))
        await self.ask("fast", user("f?"))


async def test_an_episode_with_an_open_request_is_set_aside_at_settlement_and_found_by_the_audit(store: Store) -> None:
    """As if its writer had ended between the request and the reply, and the record were scored all the same."""
    await import_tasks(store, 1, num_generations=3)
    async with resources(store, HeldEngine(), max_turns=8) as shared:
        for _ in range(3):
            assert await play(Uneven(shared, await claim(store))) is not None
        opened = {"status": DispatchStatus.RUNNING.value}
        dispatches = store.database["dispatched_sampling_tasks"]
        await dispatches.update_one({"_id": "main:train:0:t0:1:1:0"}, {"$set": opened, "$unset": {"response": 1}})
        await settle_next(store, "w", shared.config)
        assert {data.record for data in await store.data.find({})} == {"main:train:0:t0:0:1", "main:train:0:t0:2:1"}
        assert (await audit(store)).results[Check.COMPLETE].violations == 0
        await dispatches.update_one({"_id": "main:train:0:t0:2:1:0"}, {"$set": opened})
        assert (await audit(store)).results[Check.COMPLETE].violations == 1


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
    page = (Path(__file__).parents[2] / "docs" / "custom_samplers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- runs in tests/sampler/test_threads.py -->\n```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs_threads"}
    exec(block, names)
    engine = HeldEngine(lambda number: f"<answer>{4 if number == 8 else 5}</answer>", at_least=4)
    sampler = await played(store, names["Drafts"], engine)
    record, _, dispatches = await ended(store, sampler)
    assert (record.score, record.termination, len(dispatches)) == (1.0, "answered", 9)
    assert [len(thread.turns) for thread in engine.check(record, dispatches).threads] == [2, 2, 2, 2, 1]
