"""Misuse of threads, and requests that fail or are cancelled: nothing stays open, and no other thread changes."""

import asyncio
import contextlib
from typing import ClassVar

import pytest

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler
from sampler.scorers import Score
from shared.documents.states import DispatchStatus, SlotStatus, Termination
from shared.episodes.state import EpisodeState
from shared.errors import ConfigError
from shared.store import Store
from tandem.audit.run import audit
from tests.sampler.episodes import ended, resources
from tests.sampler.threads import HeldEngine, Threaded, played, user
from tests.shared.builders import claim, import_tasks

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
        assert await play(playing) is None
        with contextlib.suppress(asyncio.CancelledError):
            await playing.forgotten
        assert playing.forgotten.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await playing.ask("b", user("after the end"))
    record, slot, dispatches = await ended(store, playing)
    assert (slot.status, record.termination) == (SlotStatus.OPEN, "unforeseen")
    assert "returned while thread 'a' of policy main waits for a reply" in (record.error or "")
    assert [d.status.value for d in dispatches] == ["completed", "failed"]


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
    assert (record.termination, slot.status) == ("misconfigured", SlotStatus.FAILED)
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


class Again(Threaded):
    """Leaves its second request, and sends the same messages again."""

    engine: ClassVar[HeldEngine]

    async def run(self) -> Termination:
        await self.ask(None, user("One"))
        left = asyncio.create_task(self.ask(None, user("Two")))
        await self.engine.until_asked(2)
        with pytest.raises(ConfigError, match="waits for a reply already"):
            self.prompt_tokens([user("Two")])
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        with pytest.raises(ValueError, match="was written when its thread asked again"):
            self.mark(DispatchStatus.REPEAT_ERROR)
        self.engine.silent.clear()
        await self.ask(None, user("Two"))
        self.mark(DispatchStatus.REPEAT_ERROR)
        return Termination.ANSWERED


async def test_a_request_that_is_sent_again_is_in_the_conversation_once_and_is_not_marked_for_the_other(
    store: Store,
) -> None:
    engine = Again.engine = HeldEngine()
    engine.silent = {1}
    sampler = await played(store, Again, engine)
    record, _, dispatches = await ended(store, sampler)
    engine.check(record, dispatches)
    assert [d.status.value for d in dispatches] == ["completed", "failed", "repeaterror"]
    assert [message["content"] for message in sampler.conversation] == ["One", "reply 0", "Two", "reply 2"]


class Leaking(Threaded):
    """A task that it does not await asks when `run` has returned."""

    engine: ClassVar[HeldEngine]

    async def run(self) -> Termination:
        await self.ask("a", user("One"))
        self.leaked = asyncio.create_task(self.ask("b", user("Two")))
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        await self.leaked
        return Score(1.0)


async def test_a_request_that_was_asked_while_the_others_were_written_is_written_too(store: Store) -> None:
    engine = HeldEngine()
    sampler = await played(store, Leaking, engine)
    record, slot, dispatches = await ended(store, sampler)
    engine.check(record, dispatches)
    assert slot.status is SlotStatus.SCORED
    assert [d.status.value for d in dispatches] == ["completed", "completed"]
