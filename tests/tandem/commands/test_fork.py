"""`tandem fork` before any sampler plays: what it queues, what it refuses, and what it says is missing."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import Result

from shared.documents import Task
from shared.documents.fork import ForkOrigin
from shared.documents.run import InferenceService, Worker
from shared.documents.states import RunState, ServiceStatus
from shared.episodes.origin import fork_task, queue_fork, read_origin
from shared.errors import ConfigError
from shared.store import Store
from shared.store.tasks import TaskVerbs
from tandem.commands.fork import retried, samplers_say
from tests.killer import Killer
from tests.sampler.running import until
from tests.shared.builders import claim
from tests.shared.episodes import whole_run
from tests.tandem.commands.commands import RECORD, Command


async def fork(tandem: Command, store: Store, turn: int, *flags: str, code: int) -> Result:
    result = await asyncio.to_thread(tandem, "fork", store.run, f"{RECORD}:{turn}", *flags)
    assert result.exit_code == code, result.output
    return result


async def test_what_is_missing_is_said_at_once_with_the_command_that_starts_it(tandem: Command, store: Store) -> None:
    await whole_run(store)
    told = (await fork(tandem, store, 0, code=1)).stderr
    assert "no engine of policy main is alive" in told
    assert f"python -m sampler.engine.keeper --run {store.run}" in told
    await store.services.heartbeat(
        InferenceService(
            id="http://e", url="http://e", policy="main", version=0, status=ServiceStatus.UP, heartbeat_s=600
        )
    )
    await store.workers.heartbeat(Worker(id="trainer:main:h:1", kind="trainer", host="h", pid=1))
    told = (await fork(tandem, store, 0, code=1)).stderr
    assert "no sampler is alive" in told
    assert f"python -m sampler --run {store.run}" in told
    await store.runs.set_state(RunState.PAUSED)
    assert f"`tandem resume {store.run}`" in (await fork(tandem, store, 0, code=1)).stderr
    (task,) = await store.database["tasks"].find({"split": "fork"}).to_list()
    assert (task["_id"], task["num_generations"]) == (f"main:fork:0:{RECORD}:0", 8)
    assert task["payload"]["fork"] == {
        **{"dispatch": f"{RECORD}:0", "sampling_params": {"temperature": 1.0}, "earlier_calls": "none"}
    }


async def test_it_must_be_said_what_becomes_of_earlier_tool_calls(tandem: Command, store: Store) -> None:
    await whole_run(store)
    told = (await fork(tandem, store, 1, code=2)).stderr
    assert "turn 1 comes after 1 tool call" in told
    assert "--stateless_tools" in told
    assert "--replay_tools" in told
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 0
    await fork(tandem, store, 1, "--stateless_tools", "--replay_tools", code=2)
    told = (await fork(tandem, store, 1, "--replay_tools", "--no_wait", code=0)).stdout
    assert told.strip() == f"queued: main:fork:0:{RECORD}:1"
    told = (await fork(tandem, store, 1, "--replay_tools", "--no_wait", code=0)).stdout
    assert told.strip() == f"already queued: main:fork:0:{RECORD}:1"
    (task,) = await store.database["tasks"].find({"split": "fork"}).to_list()
    assert task["payload"]["fork"]["earlier_calls"] == "replayed"


@pytest.mark.parametrize("flags", [["--n", "4"], ["--temperature", "0.5"]], ids=str)
async def test_another_fork_of_the_same_turn_needs_again(tandem: Command, store: Store, flags: list[str]) -> None:
    await whole_run(store)
    await fork(tandem, store, 0, "--no_wait", code=0)
    told = (await fork(tandem, store, 0, *flags, "--no_wait", code=2)).stderr
    assert "add --again" in told
    told = (await fork(tandem, store, 0, *flags, "--again", "--no_wait", code=0)).stdout
    assert told.strip() == f"queued: main:fork:1:{RECORD}:0"


async def test_copies_of_a_greedy_reply_are_refused(tandem: Command, store: Store) -> None:
    await whole_run(store)
    greedy = {"$set": {"sampling_params": {"temperature": 0.0, "max_new_tokens": 8}}}
    await store.database["dispatched_sampling_tasks"].update_many({}, greedy)
    assert "was sampled greedily" in (await fork(tandem, store, 0, code=2)).stderr
    await fork(tandem, store, 0, "--temperature", "1", "--no_wait", code=0)
    (task,) = await store.database["tasks"].find({"split": "fork"}).to_list()
    assert task["payload"]["fork"]["sampling_params"] == {"temperature": 1.0}, (
        "of the reply's length, the sampler decides"
    )


def test_a_task_file_makes_no_fork(tandem: Command, tmp_path: Path) -> None:
    origin = {"dispatch": "r:0", "sampling_params": {}}
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "a", "query": "?", "answer": "1", "fork": origin}))
    told = tandem("tasks", "import", "forks", "t.jsonl")
    assert told.exit_code == 2, told.output
    assert "fork" in told.stderr
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "a", "query": "?", "answer": "1"}))
    told = tandem("tasks", "import", "forks", "t.jsonl", "--split", "fork")
    assert told.exit_code == 2, told.output
    assert "split 'fork' is for continuations of stored turns" in told.stderr


async def test_queued_forks_are_episodes_that_samplers_are_wanted_for(tandem: Command, store: Store) -> None:
    await whole_run(store)
    before = await store.questions.slots_to_play("main", 0)
    await fork(tandem, store, 0, "--no_wait", code=0)
    assert (await store.questions.slots_to_play("main", 0))["open"] == before["open"] + 8


@pytest.mark.parametrize("given", ["nan", "inf", "0.0", "-1.0"])
async def test_a_temperature_is_a_finite_number_above_0(tandem: Command, store: Store, given: str) -> None:
    await whole_run(store)
    assert f"--temperature is {given}" in (await fork(tandem, store, 0, "--temperature", given, code=2)).stderr
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 0


@pytest.mark.parametrize("n", ["0", "-1", "513", "1000000", "x"])
async def test_a_number_of_continuations_that_is_none_queues_nothing(tandem: Command, store: Store, n: str) -> None:
    await whole_run(store)
    await fork(tandem, store, 0, "--n", n, "--no_wait", code=2)
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (RECORD, f"{RECORD} is a record; expected one of its turns, {RECORD}:0 to {RECORD}:2"),
        ("main:train:0:t0", "has no dispatch 'main:train:0:t0'; expected RECORD:TURN"),
        (f"{RECORD}:3", "has 3 turns, from 0; it has no turn 3"),
        (f"{RECORD}:{'9' * 5000}", "it has no turn 9999"),
        (f"{RECORD}:-1", "expected RECORD:TURN"),
        (f"{RECORD}:1.0", "expected RECORD:TURN"),
        ("$where:0", "has no dispatch '$where:0'"),
        (":", "has no dispatch ':'"),
        ("", "has no dispatch ''"),
        ("\x1b[31m:0", "has no dispatch '\\x1b[31m:0'"),
    ],
    ids=lambda value: value[:40],
)
async def test_what_names_no_turn_is_refused_with_what_was_expected(
    tandem: Command, store: Store, given: str, told: str
) -> None:
    await whole_run(store)
    result = await asyncio.to_thread(tandem, "fork", store.run, given, "--no_wait")
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "\x1b" not in result.stderr
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 0


async def test_an_episode_of_another_sampler_is_refused_before_anything_is_queued(
    tandem: Command, store: Store
) -> None:
    """Its task names none: the settings of the process that played it do."""
    await whole_run(store)
    await store.settings.keep("sampler", {"sampler": "environment"}, "w")
    told = (await fork(tandem, store, 0, "--no_wait", code=2)).stderr
    assert "the sampler 'environment' played its episode" in told
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 0


async def test_what_differs_from_the_group_that_exists_is_said(tandem: Command, store: Store) -> None:
    await whole_run(store)
    await fork(tandem, store, 1, "--stateless_tools", "--no_wait", code=0)
    flags = ("--replay_tools", "--n", "4", "--temperature", "0.5", "--no_wait")
    told = (await fork(tandem, store, 1, *flags, code=2)).stderr
    assert "--n 8, not 4, --temperature 1.0, not 0.5, earlier tool calls stateless, not replayed" in told


async def test_a_queued_fork_is_json_for_programs(tandem: Command, store: Store) -> None:
    await whole_run(store)
    told = (await fork(tandem, store, 0, "--no_wait", "--json", code=0)).stdout
    assert json.loads(told) == {"group": f"main:fork:0:{RECORD}:0", "status": "created"}


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
async def test_a_command_that_another_one_forestalls_takes_no_group_of_another_wish_for_its_own(
    tandem: Command, store: Store, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The other one writes between this one's look for the group and its write."""
    await whole_run(store)
    origin = await read_origin(store, f"{RECORD}:0")
    task = await store.tasks.get(origin.record.task)
    assert task is not None
    wanted = ForkOrigin(dispatch=f"{RECORD}:0", sampling_params={"temperature": 1.0})
    left, ask = [fork_task(origin, task, wanted, 5, 0, 0)], TaskVerbs.next_seq

    async def forestalled(verbs: TaskVerbs, policy: str, split: str) -> int:
        found = await ask(verbs, policy, split)
        if left:
            await verbs.insert_new([left.pop()])
        return found

    monkeypatch.setattr(TaskVerbs, "next_seq", forestalled)
    flags = ["--again"] if again else []
    told = await fork(tandem, store, 0, "--n", "3", *flags, "--no_wait", code=0 if again else 2)
    if again:
        assert told.stdout.strip() == f"queued: main:fork:1:{RECORD}:0"
    else:
        assert "exists, with --n 5, not 3" in told.stderr
    tasks = await store.database["tasks"].find({"split": "fork"}).to_list()
    assert {task["epoch"]: task["num_generations"] for task in tasks} == ({0: 5, 1: 3} if again else {0: 5})


async def test_forks_that_are_queued_at_once_have_places_of_their_own(store: Store) -> None:
    await whole_run(store)
    origins = [await read_origin(store, f"{RECORD}:{turn}") for turn in range(3)]
    wanted = [ForkOrigin(dispatch=one.dispatch.id, sampling_params={"temperature": 1.0}) for one in origins]
    made = [queue_fork(store, origin, fork, 2, again=False) for origin, fork in zip(origins, wanted, strict=True)]
    tasks = [task for task, _ in await asyncio.gather(*made)]
    assert sorted(task.seq for task in tasks) == [0, 1, 2]
    assert [task.payload.fork for task in tasks] == wanted


async def test_a_fork_that_is_deleted_while_it_waits_ends_the_command(tandem: Command, store: Store) -> None:
    await whole_run(store)
    await everything_lives(store)
    waiting = asyncio.create_task(fork(tandem, store, 0, code=2))
    queued = {"split": "fork", "created_at": {"$ne": None}}  # one that is deleted before is queued again
    await until(lambda: store.database["tasks"].count_documents(queued), bool)
    await store.database["tasks"].delete_one(queued)
    assert "was deleted while it waited" in (await waiting).stderr


async def test_a_fork_that_is_deleted_as_soon_as_it_is_queued_is_not_queued_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole_run(store)
    insert = TaskVerbs.insert_new

    async def deleted_at_once(verbs: TaskVerbs, tasks: Sequence[Task], *, ordered: bool = False) -> int:
        new = await insert(verbs, tasks, ordered=ordered)
        await store.database["tasks"].delete_many({"split": "fork"})
        return new

    monkeypatch.setattr(TaskVerbs, "insert_new", deleted_at_once)
    origin = await read_origin(store, f"{RECORD}:0")
    wanted = ForkOrigin(dispatch=f"{RECORD}:0", sampling_params={"temperature": 1.0})
    with pytest.raises(ConfigError, match="was deleted while it waited"):
        await queue_fork(store, origin, wanted, 3, again=False)
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 0


async def everything_lives(store: Store) -> None:
    await store.services.heartbeat(
        InferenceService(
            id="http://e", url="http://e", policy="main", version=0, status=ServiceStatus.UP, heartbeat_s=600
        )
    )
    await store.workers.heartbeat(
        Worker(
            id="sampler:h:1", kind="sampler", host="h", pid=1, doing="sampling", heartbeat_s=600, alarms=["no tools"]
        )
    )


async def test_only_engines_and_samplers_that_can_play_it_count_as_there(tandem: Command, store: Store) -> None:
    await whole_run(store)
    pinned = InferenceService(id="http://p", url="http://p", policy="main", version=0, status=ServiceStatus.UP)
    await store.services.heartbeat(pinned.model_copy(update={"serve_version": 0}))
    assert "no engine of policy main is alive" in (await fork(tandem, store, 0, code=1)).stderr
    await everything_lives(store)
    await store.settings.keep("sampler", {"policy": "judge"}, "sampler:h:1")
    told = (await fork(tandem, store, 0, code=1)).stderr
    assert "no living sampler plays tasks of policy main" in told


async def test_while_nothing_is_played_it_says_what_samplers_do_and_why_attempts_failed(store: Store) -> None:
    await whole_run(store)
    await everything_lives(store)
    assert await samplers_say(store) == ["no slot is played yet; samplers say: sampling; no tools"]
    origin = await read_origin(store, f"{RECORD}:0")
    wanted = ForkOrigin(dispatch=f"{RECORD}:0", sampling_params={"temperature": 1.0})
    task, _ = await queue_fork(store, origin, wanted, 3, again=False)
    assert retried(task) == []
    for _ in range(2):
        held = await claim(store, split="fork")
        await store.tasks.retry_slot(held, "tool server gone", delay_s=600, max_failures=8)
    task = await store.tasks.get(task.id) or task
    assert retried(task) == ["an attempt failed, and its slot is tried again: tool server gone"]


async def test_a_command_killed_at_any_write_is_repeated_to_the_same_group(
    store: Store, mortal: tuple[Store, Killer]
) -> None:
    dying, killer = mortal
    await whole_run(store)
    origin = await read_origin(store, f"{RECORD}:0")
    wanted = ForkOrigin(dispatch=f"{RECORD}:0", sampling_params={"temperature": 1.0})

    async def command(run: Store) -> None:
        await queue_fork(run, await read_origin(run, f"{RECORD}:0"), wanted, 2, again=False)

    deaths = 0
    while await killer.dies(deaths + 1, lambda: command(dying)):
        deaths += 1
        task, _ = await queue_fork(store, origin, wanted, 2, again=False)
        assert (task.epoch, task.num_generations, len(task.slots)) == (0, 2, 2)
        assert task.created_at is not None, f"killed at event {deaths}"
        assert await store.database["tasks"].count_documents({"split": "fork"}) == 1
        await store.database["tasks"].delete_one({"_id": task.id})
    assert deaths >= 14, "two events of every command"
