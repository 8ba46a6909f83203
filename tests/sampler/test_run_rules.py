"""Rules of settlement belong to the run: declared once, compared at every start, changed by a verb, stamped on each group."""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from sampler.config import SamplerConfig
from sampler.settlement.current_rules import CurrentRules, declared
from sampler.settlement.registry import register_advantage
from sampler.settlement.settle import settle
from shared.documents import Task
from shared.documents.rules import RunRules
from shared.errors import ConfigError, DataError, MalformedDocument
from shared.processes.mongod import Mongod
from shared.rules.groups import SettlementRules
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.sampler.groups import completed_group
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import rules_number
from tests.shared.builders import import_tasks


def of_sources(store: Store, **sources: Mapping[str, Any]) -> SamplerConfig:
    needed = {"run": store.run, "db_connection_string": "x", "model_name_or_path": "."}
    return SamplerConfig.from_sources({**{name: dict(given) for name, given in sources.items()}, "file": needed})


def current(store: Store, **flags: Any) -> CurrentRules:
    return CurrentRules(store, of_sources(store, flags=flags), "sampler:a:1")


async def test_the_first_process_declares_the_rules_and_one_with_nothing_given_reads_them(store: Store) -> None:
    first = current(store, advantage="zscore", min_turns=2)
    assert (await first.begin()).advantage == "zscore"
    second = await current(store).begin()
    assert (second.advantage, second.min_turns) == ("zscore", 2)
    (written,) = await store.rules.all("main")
    assert (written.id, written.by, written.is_whole) == ("main:1", "sampler:a:1", True)
    assert written.since is not None
    await current(store, advantage="zscore").begin()
    assert await store.rules.all("main") == [written]


async def test_of_two_that_write_a_number_at_once_the_first_one_counts(store: Store) -> None:
    first = RunRules.of("main", 1, {"settlement": declared(make_config({})).model_dump(mode="json")}, "first")
    second = RunRules.of("main", 1, {"settlement": {"advantage": "zscore"}}, "second")
    assert (await store.rules.add(first)).by == "first"
    assert (await store.rules.add(second)).by == "first"
    assert [one.digest for one in await store.rules.all("main")] == [first.digest]


async def test_another_setting_is_refused_with_both_values_where_it_was_given_and_the_remedy(store: Store) -> None:
    await current(store, advantage="zscore", min_turns=2).begin()
    other = of_sources(
        store, flags={"advantage": "mean"}, environment={"min_turns": 0}, elsewhere={"mask_overlong": False}
    )
    with pytest.raises(ConfigError) as refused:
        await CurrentRules(store, other, "b").begin()
    said = str(refused.value)
    assert "flags: advantage is 'mean'; expected 'zscore'" in said
    assert "environment: min_turns is 0; expected 2" in said
    assert "mask_overlong" not in said, "given, and the same"
    assert "rules 1 of policy main, since 2" in said
    assert "by sampler:a:1" in said
    assert f"tandem rules {store.run} --set min_turns=0 --set advantage=mean" in said


async def test_policies_without_a_trainer_are_compared_where_they_are_given(store: Store) -> None:
    frozen = {"other_policies": {"judge": "."}, "frozen_policies": ["judge"]}
    await current(store, **frozen).begin()
    assert (await current(store).begin()).untrained_policies == ["judge"]
    with pytest.raises(ConfigError, match=r"untrained_policies is \[\]; expected \['judge'\]"):
        await current(store, other_policies={"judge": "."}).begin()


async def test_every_setting_that_settlement_reads_is_declared_and_compared(store: Store) -> None:
    """One other value of each: declared by the first process, refused at the second."""
    other: dict[str, Any] = {
        "min_group_size": 3,
        "min_turns": 1,
        "reserve_context_error_count": 4,
        "mask_overlong": True,
        "balance_sample": True,
        "zero_variance_tolerance": 0.5,
        "efficient_rewarding": True,
        "efficient_rewarding_magnitude": 0.2,
        "advantage": "gigpo",
        "adv_scaling": 2.0,
        "turn_discount": 0.5,
        "gigpo_weight": 0.5,
        "gigpo_mode": "mean_std_norm",
        "gigpo_cross_steps": True,
    }
    assert other.keys() | {"untrained_policies"} == SettlementRules.model_fields.keys()
    await current(store).begin()
    for name, value in other.items():
        assert declared(make_config({name: value})) != declared(make_config({}))
        with pytest.raises(ConfigError, match=f"flags: {name} is "):
            await current(store, **{name: value}).begin()


async def test_a_group_is_settled_by_the_rules_that_it_was_opened_with(store: Store) -> None:
    rules = current(store)
    await rules.begin()
    await import_tasks(store, 2, num_generations=2)

    async def opened() -> Task:
        claim = await store.tasks.claim_slot(
            "w", policy="main", split="train", lease_s=60, seq_limit=None, max_failures=3, rules=rules.number
        )
        assert claim is not None
        return claim.task

    assert (await opened()).rules == 1
    assert await rules_number(store, make_config({"advantage": "zscore"})) == 2
    assert rules.number == 1
    await rules.refresh()
    assert (rules.number, rules.applicable) == (2, [2, 1])
    again, other = await opened(), await opened()
    assert (again.tid, again.rules, other.tid, other.rules) == ("t0", 1, "t1", 2)


async def test_a_group_that_was_opened_before_there_were_rules_is_settled_by_the_first_ones(store: Store) -> None:
    task = await completed_group(store, [1.0, 0.0])
    with pytest.raises(DataError, match="run_rules main:1, are gone"):
        await settle(store, task)
    await rules_number(store, make_config({"advantage": "zscore"}))
    await rules_number(store, make_config({}))
    await settle(store, task)
    advantages = sorted({d["advantage"] for d in await store.database["records"].find().to_list()})
    assert advantages == pytest.approx([-0.7071058, 0.7071058], abs=1e-5)


async def test_rules_that_a_process_cannot_apply_stop_their_groups_there_and_an_alarm_says_why(store: Store) -> None:
    rules = current(store)
    await rules.begin()
    task = await completed_group(store, [1.0, 0.0])
    elsewhere = {**declared(make_config({})).model_dump(mode="json"), "advantage": "tests_elsewhere"}
    await store.rules.add(RunRules.of("main", 2, {"settlement": elsewhere}, "a person"))
    await store.database["tasks"].update_one({"_id": task.id}, {"$set": {"rules": 2}})
    await rules.refresh()
    assert rules.number is None
    assert await store.tasks.claim_settlement("w", policy="main", lease_s=60, rules=rules.applicable) is None
    (alarm,) = rules.alarms()
    assert "advantage is 'tests_elsewhere' (rules 2 of policy main" in alarm
    with pytest.raises(ConfigError, match="start it with the advantage_modules that register it"):
        await current(store).begin()
    register_advantage("tests_elsewhere")(lambda episodes, rewards, config: [0.0] * len(episodes))
    await rules.refresh()
    assert (rules.number, rules.alarms()) == (2, [])
    assert await store.tasks.claim_settlement("w", policy="main", lease_s=60, rules=rules.applicable) is not None


async def test_rules_that_were_edited_or_deleted_are_not_applied(store: Store) -> None:
    rules = current(store)
    await rules.begin()
    await rules_number(store, make_config({"min_turns": 1}))
    await store.database["run_rules"].update_one({"_id": "main:2"}, {"$set": {"settlement.min_turns": 5}})
    await rules.refresh()
    assert rules.number is None
    assert "run_rules main:2: its settings were changed" in rules.alarms()[0]
    with pytest.raises(MalformedDocument):
        await current(store).begin()
    await store.database["run_rules"].update_one({"_id": "main:2"}, {"$set": {"settlement.min_turns": 1}})
    await store.database["run_rules"].delete_one({"_id": "main:1"})
    await rules.refresh()
    assert (rules.number, rules.applicable) == (2, [2])
    assert "run_rules main:1 is gone" in rules.alarms()[0]


@pytest.mark.parametrize("program", ["sampler", "sampler.gateway"])
async def test_a_process_that_is_given_something_else_ends_with_the_remedy_and_changes_nothing(
    mongod: Mongod, store: Store, program: str
) -> None:
    await current(store, advantage="zscore").begin()
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", program, "--run", store.run, "--model_name_or_path", str(MODEL)),
        *("--advantage", "mean", "--gateway_port", "0"),
        env={**os.environ, "DB_CONNECTION_STRING": mongod.connection_string},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await started.communicate()
    assert started.returncode == 2, told.decode()
    last = told.decode().strip().splitlines()[-1]
    assert "flags: advantage is 'mean'; expected 'zscore', as the run has it (rules 1 of policy main" in last
    assert f"tandem rules {store.run} --set advantage=mean" in last
    assert len(await store.rules.all("main")) == 1
