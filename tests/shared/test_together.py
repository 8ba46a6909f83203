"""Several callers share a command; each has its own answer, and its own error."""

import asyncio
from collections.abc import Sequence

import pytest
from pymongo.errors import AutoReconnect

from shared.documents import Claim
from shared.documents.agent_sessions import AgentSession, ClientRequest
from shared.documents.states import DispatchStatus, RecordStatus
from shared.errors import DoesNotFit
from shared.store import Store
from shared.store.sessions import Opened
from shared.store.together import MOST, Together
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import make_dispatches


async def claims(store: Store, number: int) -> list[Claim]:
    await import_tasks(store, number, num_generations=1)
    return [await claim(store) for _ in range(number)]


class Work:
    """Doubles numbers, each batch when `go` is set; -13 is nothing that it can do."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        await self.go.wait()
        if self.error is not None or -13 in numbers:
            raise self.error or ValueError("thirteen")
        return [2 * number for number in numbers]


async def asked(together: Together[int, int], numbers: Sequence[int]) -> list["asyncio.Task[int]"]:
    tasks = [asyncio.create_task(together.ask(number)) for number in numbers]
    await asyncio.sleep(0.01)
    return tasks


async def test_what_comes_while_a_command_runs_goes_together_and_each_has_its_own_answer() -> None:
    work = Work()
    together = Together(work)
    first = await asked(together, [1])
    later = await asked(together, range(2, MOST + 3))
    work.go.set()
    assert await asyncio.gather(*first, *later) == [2 * number for number in range(1, MOST + 3)]
    assert [len(batch) for batch in work.batches] == [1, MOST, 1]
    assert await together.ask(5) == 10, "after a pause it begins again"


async def test_an_error_that_one_caller_caused_is_that_callers_alone() -> None:
    work = Work()
    together = Together(work)
    tasks = await asked(together, [1]) + await asked(together, [2, -13, 3])
    work.go.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [found[0], found[1], found[3]] == [2, 4, 6]
    assert isinstance(found[2], ValueError)


async def test_an_outage_is_told_to_all_at_once() -> None:
    """One by one, each would wait for the server's time-out."""
    work = Work()
    work.error = AutoReconnect("gone")
    together = Together(work)
    tasks = await asked(together, [1]) + await asked(together, [2, 3])
    work.go.set()
    assert all(isinstance(one, AutoReconnect) for one in await asyncio.gather(*tasks, return_exceptions=True))
    assert work.batches == [[1], [2, 3]]


@pytest.mark.parametrize("answers", [0, 1, 3])
async def test_another_number_of_answers_than_of_questions_is_an_error_of_all(answers: int) -> None:
    go = asyncio.Event()

    async def work(numbers: Sequence[int]) -> list[int]:
        await go.wait()
        return list(numbers) if len(numbers) == 1 else [1] * answers

    together = Together(work)
    tasks = await asked(together, [1]) + await asked(together, [2, 3])
    go.set()
    async with asyncio.timeout(30):
        found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found[0] == 1
    assert all(isinstance(one, RuntimeError) and "to 2 questions" in str(one) for one in found[1:])
    assert await together.ask(4) == 4, "it goes on"


async def test_a_caller_that_leaves_takes_only_its_own_question_along() -> None:
    work = Work()
    together = Together(work)
    first, later = await asked(together, [1]), await asked(together, [2, 3])
    for task in (first[0], later[0]):
        task.cancel()
    await asyncio.wait([first[0], later[0]])
    work.go.set()
    assert await later[1] == 6
    assert work.batches == [[1], [3]]


async def test_requests_and_replies_of_many_attempts_share_commands(store: Store) -> None:
    """One number that is taken, one attempt that has ended, one reply that is closed, and one too large are those alone."""
    held = await claims(store, 12)
    for number, one in enumerate(held):
        await store.sessions.begin(one, "w", AgentSession(key_hash=str(number)))
    whole = [make_dispatches(one.record_id)[0] for one in held]
    client = ClientRequest(identity="i", cause="first", requested_by="me")
    replies = [one.model_copy(update={"client": client}) for one in whole]
    asked_for = {"response": None, "status": DispatchStatus.RUNNING, "weight_versions": []}
    requests = [one.model_copy(update=asked_for) for one in replies]
    other = requests[3].model_copy(update={"client": client.model_copy(update={"requested_by": "another"})})
    await store.sessions.open_turn(other)
    await store.records.move(held[5].record_id, RecordStatus.FAILED, {})
    requests[7] = requests[7].model_copy(update={"messages": [{"role": "user", "content": "x" * 17_000_000}]})
    await store.database.command("profile", 2)
    opened = await asyncio.gather(*map(store.sessions.open_turn, requests), return_exceptions=True)
    await store.database.command("profile", 0)
    listed = store.database["system.profile"]
    looks = {"op": "query", "ns": f"{store.database.name}.records"}
    assert isinstance(opened.pop(7), DoesNotFit)
    assert opened == [*[Opened.OPEN] * 3, Opened.TAKEN, Opened.OPEN, Opened.ENDED, *[Opened.OPEN] * 5]
    assert await listed.count_documents(looks) < 12, "a look at the attempts' records is shared"
    await store.records.close_dispatches([requests[2]])
    saved = await asyncio.gather(*map(store.sessions.save_reply, replies[:7]))
    assert saved == [True, True, False, *[True] * 4]
    stored = (await store.records.dispatches_of([held[6].record_id]))[held[6].record_id]
    assert [one.response for one in stored] == [replies[6].response]


@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_whether_a_turn_is_there_is_known_by_its_number(store: Store, turn: int) -> None:
    held = (await claims(store, 1))[0]
    request = make_dispatches(held.record_id)[0]
    await store.records.open_dispatch(request)
    assert await store.sessions.has_turn(held.record_id, turn) is (turn == 0)
