"""One process plays tasks of several samplers, each by the name that the task gives."""

import json
from pathlib import Path
from typing import Any

import pytest

from sampler import AsyncSampler, MCPSampler, Score, Termination
from sampler.core.service.kinds import SamplerKinds
from sampler.gateway.agent_sampler import AgentSampler
from sampler.settings import SamplerConfig
from shared.documents import Task, TaskPayload
from shared.documents.states import SlotStatus
from shared.errors import ConfigError
from shared.store import Store
from shared.tasks import sampler_names
from shared.tasks.files import ImportTarget, import_task_file
from tandem.commands.run_status import read_status
from tests.sampler.episodes import MODEL
from tests.sampler.running import running_sampler, until
from tests.shared.builders import make_task

OPTIONS = {"poll_s": 0.02, "heartbeat_s": 0.05}
HERE = "tests.sampler.test_samplers_by_task"
AGENT = f"{HERE}:config"  # any function


class Coin(AsyncSampler):
    """Asks nothing."""

    async def run(self) -> Termination:
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(0.25, {"sampler": "coin"})


class Die(Coin):
    async def evaluate_record(self) -> Score:
        return Score(0.75, {"sampler": "die"})


def config(**values: Any) -> SamplerConfig:
    return SamplerConfig.model_validate({"run": "r", "db_connection_string": "x", "model_name_or_path": MODEL} | values)


def task(seq: int, **payload: Any) -> Task:
    fields = {"payload": TaskPayload(query="2+2?", answer="4", **payload)}
    return make_task(seq, num_generations=1).model_copy(update=fields)


async def slots(store: Store, count: int) -> list[Any]:
    tasks = [await store.tasks.get(f"main:train:0:t{seq}") for seq in range(count)]
    return [slot for one in tasks if one is not None for slot in one.slots]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"agent": "FOLDER/no.py:play"}, r"agent: '.*no\.py' cannot be imported: FileNotFoundError"),
        ({"agent": "FOLDER/mine.py:paly"}, r"mine\.py has no such name; expected a function"),
        ({"agent_command": "pythn FOLDER/mine.py"}, "there is no 'pythn'; expected a program on PATH"),
        ({"agent_command": "./mine.sh {query}"}, r"there is no '\./mine\.sh'; expected an executable file"),
        ({"agent_command": "'python"}, "No closing quotation"),
    ],
)
def test_an_agent_that_is_not_there_is_told_before_a_task_fails_on_it(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    (tmp_path / "mine.py").write_text("async def play(task): ...\n")
    with pytest.raises(ConfigError, match=said):
        SamplerKinds.of(config(**{name: text.replace("FOLDER", str(tmp_path)) for name, text in settings.items()}))
    for good in (
        {"agent": f"{tmp_path}/mine.py:play"},
        {"agent_command": f"env A=1 python {tmp_path}/mine.py"},
        {"agent_command": "agent-of-the-image", "agent_isolation": "container", "agent_container": {"image": "mine"}},
    ):
        assert SamplerKinds.of(config(**good)).of_task(None) is AgentSampler


async def test_one_process_plays_each_task_by_the_sampler_that_it_names(store: Store) -> None:
    names = [None, "coin", "die", "mcp", None, "coin"]
    await store.tasks.insert_new([task(seq, sampler=name) for seq, name in enumerate(names)])
    own = {"coin": f"{HERE}:Coin", "die": f"{HERE}:Die"}
    async with running_sampler(store, **OPTIONS, samplers=own):
        await until(lambda: slots(store, 6), lambda all_: {one.status for one in all_} == {SlotStatus.SCORED})
    assert [slot.score for slot in await slots(store, 6)] == [1.0, 0.25, 0.75, 1.0, 1.0, 0.25]
    record = await store.records.get("main:train:0:t2:0:1")
    assert record is not None
    assert record.reward_details["sampler"] == "die"


async def test_a_name_that_this_process_lacks_is_left_to_others_at_once_and_told(store: Store) -> None:
    """Also a bundled one whose setting is missing. A late task is claimed once, and no more of its kind."""
    await store.tasks.insert_new([task(0, sampler="chess"), task(1, sampler="agent"), task(2)])
    async with running_sampler(store, **OPTIONS):
        await until(lambda: slots(store, 3), lambda all_: all_[2].status == SlotStatus.SCORED)
        await store.tasks.insert_new([task(3, sampler="go"), task(4, sampler="go"), task(5)])
        await until(lambda: slots(store, 6), lambda all_: all_[5].status == SlotStatus.SCORED)
        seen = await until(lambda: read_status(store), lambda seen: len(seen.workers[0]["alarms"]) == 3)
    found = await slots(store, 6)
    left = [found[n] for n in (0, 1, 3, 4)]
    assert {(slot.status, slot.failures) for slot in left} == {(SlotStatus.OPEN, 0)}
    assert [slot.attempt for slot in left] == [0, 0, 1, 0]
    alarms = sorted(seen.workers[0]["alarms"])
    assert alarms[0].startswith(
        "1 open tasks wait for another sampler: sampler 'agent' lacks a setting here: one of agent (a"
    )
    assert alarms[1].startswith(
        "1 open tasks wait for another sampler: sampler 'chess' is unknown here; expected one of environment, game, mcp, "
    )
    assert alarms[2].startswith(
        "task main:train:0:t3 and others like it wait for another sampler: sampler 'go' is unknown"
    )
    async with running_sampler(store, **OPTIONS, samplers={"chess": f"{HERE}:Coin", "go": f"{HERE}:Die"}):
        await until(lambda: slots(store, 6), lambda all_: sum(one.status == SlotStatus.SCORED for one in all_) == 5)


async def test_a_process_that_can_play_no_open_task_ends_at_its_start(store: Store) -> None:
    await store.tasks.insert_new([task(0, sampler="chess")])
    with pytest.raises(
        ConfigError, match="this sampler can play none of the 1 open tasks: sampler 'chess' is unknown here"
    ):
        async with running_sampler(store, **OPTIONS) as service:
            await service


async def test_an_unknown_scorer_of_one_sampler_does_not_keep_the_tasks_of_another(store: Store) -> None:
    """Coin scores by itself, so any scorer's name is right for its tasks."""
    await store.tasks.insert_new([task(0, scorer="mine"), task(1, sampler="coin", scorer="mine"), task(2)])
    async with running_sampler(store, **OPTIONS, samplers={"coin": f"{HERE}:Coin"}):
        await until(lambda: slots(store, 3), lambda all_: all_[1].status == all_[2].status == SlotStatus.SCORED)
    assert [(slot.status, slot.attempt) for slot in await slots(store, 1)] == [(SlotStatus.OPEN, 0)]


async def test_tools_are_missed_only_by_samplers_that_use_them(store: Store) -> None:
    await store.tasks.insert_new(
        [task(0, tools=["x"]), task(1, sampler="mcp", tools=["x"]), task(2, sampler="coin", tools=["x"])]
    )
    async with running_sampler(store, **OPTIONS, samplers={"coin": f"{HERE}:Coin"}):
        await until(lambda: slots(store, 3), lambda all_: all_[2].status == SlotStatus.SCORED)
    assert [slot.attempt for slot in await slots(store, 2)] == [0, 0]


def test_the_default_is_the_agents_sampler_where_an_agent_is_set() -> None:
    def default(**values: Any) -> type[AsyncSampler]:
        return SamplerKinds.of(config(**values)).of_task(None)

    assert default() is MCPSampler
    assert default(agent=AGENT) is default(agent_command="true") is AgentSampler
    assert default(agent=AGENT, sampler="mcp") is MCPSampler
    assert default(sampler="coin", samplers={"coin": f"{HERE}:Coin"}) is Coin
    assert default(sampler=f"{HERE}:Die") is Die
    assert SamplerKinds.of(config(agent=AGENT, sampler="mcp")).of_task("agent") is AgentSampler


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"samplers": {"mcp": f"{HERE}:Coin"}},
            "samplers names 'mcp', which is a bundled sampler; expected another name",
        ),
        ({"samplers": {"a b": f"{HERE}:Coin"}}, "sampler name 'a b': expected 1 to 60 of A-Z"),
        ({"samplers": {"c": f"{HERE}:Cion"}}, "samplers: c is '.*:Cion': .* has no such name; expected a subclass of"),
        ({"sampler": "mpc"}, "sampler is 'mpc'; expected package.module:Class, or FILE.py:Class"),
    ],
)
def test_wrong_settings_stop_the_start(values: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=said):
        SamplerKinds.of(config(**values))


def test_the_bundled_names_and_traits_are_those_of_the_classes() -> None:
    traits = SamplerKinds.of(config(agent=AGENT)).traits()
    ours = {name: one for name, one in traits.items() if name in sampler_names.BUNDLED}
    assert ours == {name: one for name, one in sampler_names.BUNDLED.items() if name != sampler_names.EXTERNAL}


async def test_task_files_name_it_also_as_agent_name_and_the_import_stores_nothing_where_there_is_none(
    store: Store, tmp_path: Path
) -> None:
    """Processes of earlier versions refuse a field that they do not know."""
    lines = [{"id": "a", "query": "q", "agent_name": "coin"}, {"id": "b", "query": "q", "sampler": None}]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    await import_task_file(store, path, ImportTarget())
    stored = {one["_id"]: one["payload"] async for one in store.database["tasks"].find()}
    assert stored["main:train:0:a"]["sampler"] == "coin"
    assert "sampler" not in stored["main:train:0:b"]
    path.write_text(json.dumps({"id": "a", "query": "q", "sampler": "a/b"}))
    with pytest.raises(ConfigError, match=r't.jsonl:1: "sampler" is "a/b"; expected a text \(the name of a sampler'):
        await import_task_file(store, path, ImportTarget())


async def test_a_default_scorer_that_is_missing_for_one_sampler_holds_up_no_task_of_others(store: Store) -> None:
    """Not claimed and released for ever: what names no scorer, of that sampler, is left."""
    await store.tasks.insert_new([task(0), task(1)])
    async with running_sampler(store, **OPTIONS, sampler=f"{HERE}:Coin", default_scorer="agentcpm"):
        await store.tasks.insert_new([task(2, sampler="mcp"), task(3), task(4, sampler="mcp", scorer="exact_match")])
        await until(lambda: slots(store, 5), lambda all_: sum(one.status == SlotStatus.SCORED for one in all_) == 4)
    (left,) = [slot for slot in await slots(store, 5) if slot.status is SlotStatus.OPEN]
    assert left.attempt <= 1
