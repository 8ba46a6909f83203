"""The state of an episode with threads, as its documents and its scorer have it; episodes that ended with an open request."""

import asyncio
from collections import Counter

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import Turn
from sampler.core.kinds.conversation import Conversation
from sampler.scorers import Score
from shared.documents.states import BranchCause, DispatchStatus, RecordStatus, Termination
from shared.episodes.state import EpisodeState
from shared.store import Store
from tandem.audit.run import Check, audit
from tests.sampler.episodes import ended, resources
from tests.sampler.settling import settle_next
from tests.sampler.threads import Drafts, HeldEngine, Threaded, played, user
from tests.shared.builders import claim, import_tasks, let_time_pass

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
        assert {(thread.policy, thread.name) for thread in state.threads} == self._threads._views.keys()
        for thread in state.threads:
            view = self._threads._views[thread.policy, thread.name]
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
            turn = await talk.next_turn()
            assert isinstance(turn, Turn)
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
    one, other = said[:4], said[4:8]  # in the order in which they were answered, which the machine decides
    assert [one[0], other[0]] == ["What is A?"] * 2
    assert sorted((one[1], other[1])) == ["reply 0", "reply 1"]
    assert sorted((one[2], other[2])) == ["Sure, 0?", "Sure, 1?"]
    assert sorted((one[3], other[3])) == ["reply 2", "reply 3"]
    assert sorted(said[8].split()) == sorted(f"{one[3]} {other[3]}".split())
    assert said[9:] == ["reply 4"]


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
