"""What decides what is learned belongs to the run: declared once, compared at starts, changed by a verb, stamped on groups."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.settlement.current_rules import CurrentRules
from sampler.core.settlement.registry import register_advantage
from sampler.core.settlement.settle import settle
from sampler.scorers import Score
from sampler.settings import SamplerConfig
from shared.configuration.sections import settings_of
from shared.documents import Task
from shared.documents.rules import SECTIONS as RULE_SECTIONS
from shared.documents.rules import RunRules
from shared.documents.states import Termination
from shared.errors import ConfigError, DataError, MalformedDocument
from shared.processes.mongod import Mongod
from shared.rules.run_rules import SECTIONS, Rules
from shared.store import Store
from tests.sampler.episodes import MODEL, TEMPLATE
from tests.sampler.groups import completed_group
from tests.sampler.running import running_sampler, until
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import rules_number
from tests.shared.builders import import_tasks


def of_sources(store: Store, **sources: Mapping[str, Any]) -> SamplerConfig:
    needed = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL}
    return SamplerConfig.from_sources({**{name: dict(given) for name, given in sources.items()}, "file": needed})


def current(store: Store, **flags: Any) -> CurrentRules:
    return CurrentRules(store, of_sources(store, flags=flags), "sampler:a:1")


async def test_the_first_process_declares_the_rules_and_one_with_nothing_given_reads_them(store: Store) -> None:
    first = current(store, advantage="zscore", min_turns=2)
    assert (await first.begin()).group.advantage == "zscore"
    second = await current(store).begin()
    assert (second.group.advantage, second.group.min_turns) == ("zscore", 2)
    (written,) = await store.rules.all("main")
    assert (written.id, written.by, written.is_whole) == ("main:1", "sampler:a:1", True)
    assert written.since is not None
    await current(store, advantage="zscore").begin()
    assert await store.rules.all("main") == [written]


async def test_of_two_that_write_a_number_at_once_the_first_one_counts(store: Store) -> None:
    first = RunRules.of("main", 1, Rules(template_digest="").sections(), "first")
    second = RunRules.of("main", 1, Rules(template_digest="", advantage="zscore").sections(), "second")
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


async def test_other_policies_are_named_by_every_process_and_the_frozen_ones_are_read_from_the_run(
    store: Store,
) -> None:
    judge = {"other_policies": {"judge": str(MODEL)}}
    await current(store, **judge, frozen_policies=["judge"]).begin()
    assert (await current(store, **judge).begin()).untrained_policies == ["judge"]
    assert (await current(store, **judge).starting_config()).untrained_policies == ["judge"]
    with pytest.raises(
        ConfigError, match=r"other_policies is \[\]; expected \['judge'\].*a process names the folder of each"
    ):
        await current(store).begin()
    with pytest.raises(ConfigError, match=r"frozen_policies is \[\]; expected \['judge'\]"):
        await current(store, **judge, frozen_policies=[]).begin()


ANOTHER: dict[str, dict[str, Any]] = {
    "group": {
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
    },
    "scoring": {
        "default_scorer": "math",
        "default_scorers": [{"name": "math"}],
        "feedback_deadline_s": 60.0,
        "feedback_missing": "abandon",
    },
    "prompt": {
        "new_context": "discard_all_tools",
        "context_budget_tokens": 1000,
        "context_summary": "browse_agent",
        "repetition_early_stop_times": 3,
        "enable_repetition_compress": True,
        "system_prompt": "Be brief.",
        "answer_instruction": "none",
        "tool_call_parser": "qwen3_coder",
        "template_rewrites": "keep",
        "chat_template_kwargs": {"enable_thinking": False},
        "exclude_tools": ["shell"],
    },
    "sampling": {
        "turn_sources": {"lagging": 0.3},
        "temperature": 0.7,
        "eval_temperature": 0.0,
        "eval_sampling": {"top_p": 0.9},
    },
    "budget": {
        "max_turns": 3,
        "max_new_tokens": 99,
        "max_prompt_tokens": 999,
        "max_tokens": 4096,
        "max_tool_result_tokens": 100,
        "max_tool_result_chars": 1000,
    },
    "actors": {
        "actors": {"Bob": {"model": "judge-api"}},
        "rounds": "Bob -> *",
        "lineups": [{"X": "Bob"}],
        "name_speakers": True,
    },
    "agents": {
        "agent_output_format": "refuse",
        "agent_head_lines": 1,
        "agent_crash": "retry",
        "agent_crash_score": -1.0,
    },
    "environments": {"cut_game_reward": -2.0},
}
NEEDED: dict[str, dict[str, Any]] = {  # by the settings' own validators
    "context_budget_tokens": {"new_context": "discard_all"},
    "context_summary": {"new_context": "discard_all"},
    "enable_repetition_compress": {"new_context": "discard_all", "repetition_early_stop_times": 3},
    "efficient_rewarding_magnitude": {"efficient_rewarding": True},
    "turn_discount": {"advantage": "reward_to_go"},
    "gigpo_weight": {"advantage": "gigpo"},
    "gigpo_mode": {"advantage": "gigpo"},
    "gigpo_cross_steps": {"advantage": "gigpo"},
    "lineups": {"actors": {"Bob": {"model": "judge-api"}}},
}
DERIVED = {"template_digest", "other_policies", "frozen_policies"}  # of a process's folders: see the tests of them


def test_another_value_of_every_rule_is_tried() -> None:
    assert SECTIONS.keys() == {*ANOTHER, "policies"} == {*RULE_SECTIONS}
    for section, values in ANOTHER.items():
        assert values.keys() == SECTIONS[section].model_fields.keys() - DERIVED


@pytest.mark.parametrize(("name", "value"), [pair for values in ANOTHER.values() for pair in values.items()], ids=str)
async def test_of_two_samplers_that_differ_in_a_rule_the_second_is_refused(
    mongod: Mongod, name: str, value: Any
) -> None:
    """The first declares another value than the default, which is given to the second; a third has nothing and reads it."""
    async with Store.open(mongod.connection_string, "differing") as store:  # one run: each policy has rules of its own
        await refused_with_both_values(store, name, value)


async def refused_with_both_values(store: Store, name: str, value: Any) -> None:
    own = {"policy": name}
    needed = NEEDED.get(name, {})
    await current(store, **own, **needed, **{name: value}).begin()
    plain = Rules(template_digest="").plain()[name]
    plain = "exact_match" if name == "default_scorer" else plain
    given = {} if name == "default_scorers" else needed
    if plain is None:  # an empty value is not given, in a flag or a file
        assert settings_of(SamplerConfig)[name].field.default is None
    else:
        with pytest.raises(
            ConfigError,
            match=f"flags: {name} is .*; expected .*tandem rules {store.run} --policy {name} .*--set '?{name}=",
        ):
            await current(store, **own, **given, **{name: plain}).begin()
    third = await current(store, **own).starting_config()
    assert third.snapshot()[name] == (await current(store, **own).begin()).plain()[name]
    (written,) = await store.rules.all(name)
    assert written.values[name] == value or name in ("eval_sampling", "default_scorers")


async def test_another_chat_template_is_refused_by_its_digest(store: Store, tmp_path: Path) -> None:
    await current(store).begin()
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE.text + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"template_digest is '[0-9a-f]+'; expected '{TEMPLATE.digest}'"):
        await current(store, chat_template=str(file)).begin()
    file.write_text(TEMPLATE.text, encoding="utf-8")
    await current(store, chat_template=str(file)).begin()


async def test_a_change_reaches_episodes_of_groups_that_are_opened_later_alone(store: Store) -> None:
    """Also a slot of the earlier group that is played after the change, and after the process was started again."""
    configs: dict[str, SamplerConfig] = {}

    class Noting(MCPSampler):
        async def run(self) -> Termination:
            configs[self.claim.record_id] = self.config
            if len(configs) == 1:  # the first slot of the first group: the other one is claimed after the change
                newest = (await store.rules.all("main"))[0]
                changed = Rules.model_validate(newest.values | {"temperature": 0.5, "max_turns": 5})
                await store.rules.add(RunRules.of("main", 2, changed.sections(), "a person"))
                await asyncio.sleep(1.0)  # many times the period at which the service reads them
            return Termination.ANSWERED

        async def evaluate_record(self) -> Score:
            return Score(1.0)

    await import_tasks(store, 2, num_generations=3)
    await store.versions.ensure_first("main", "/first", {})
    async with running_sampler(store, Noting, max_turns=2, max_concurrent_episodes=1, heartbeat_s=0.05, poll_s=0.05):
        await until(lambda: asyncio.sleep(0, list(configs)), lambda played: len(played) == 6)
    played = [
        (name.split(":")[3], config.sampling.temperature, config.budget.max_turns)
        for name, config in sorted(configs.items())
    ]
    assert played == [("t0", 1.0, 2)] * 3 + [("t1", 0.5, 5)] * 3


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
    elsewhere = Rules(template_digest=TEMPLATE.digest, default_scorer="exact_match", advantage="tests_elsewhere")
    await store.rules.add(RunRules.of("main", 2, elsewhere.sections(), "a person"))
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


async def test_episodes_of_rules_that_a_process_cannot_play_are_left_to_others_and_an_alarm_says_why(
    store: Store,
) -> None:
    """Rules 2 have another chat template: this process opens none of its groups, and plays no slot of one that is open."""
    rules = current(store)
    await rules.begin()
    await import_tasks(store, 2, num_generations=2)
    first = (await store.rules.all("main"))[0]
    other = Rules.model_validate(first.values | {"template_digest": "another"})
    await store.rules.add(RunRules.of("main", 2, other.sections(), "a person"))
    await rules.refresh()
    assert (rules.number, rules.playable, rules.applicable) == (None, [1], [2, 1])
    assert "template_digest is 'another' (rules 2 of policy main" in rules.alarms()[0]

    async def claimed(number: int | None, of_rules: Sequence[int] | None) -> Task | None:
        claim = await store.tasks.claim_slot(
            "w",
            policy="main",
            split="train",
            lease_s=60,
            seq_limit=None,
            max_failures=3,
            rules=number,
            of_rules=of_rules,
        )
        return None if claim is None else claim.task

    opened = await claimed(2, None)
    assert (opened is not None, opened and opened.tid, opened and opened.rules) == (True, "t0", 2)
    assert opened is not None
    assert not await rules.plays(opened)
    other_group = await claimed(1, rules.claimable)
    assert other_group is not None
    assert (other_group.tid, other_group.rules) == ("t1", 1), "the open slot of t0 is left"
    assert await rules.plays(other_group)


async def test_rules_that_were_edited_or_deleted_are_not_applied(store: Store) -> None:
    rules = current(store)
    await rules.begin()
    await rules_number(store, make_config({"min_turns": 1}))
    await store.database["run_rules"].update_one({"_id": "main:2"}, {"$set": {"group.min_turns": 5}})
    await rules.refresh()
    assert rules.number is None
    assert "run_rules main:2: its settings were changed" in rules.alarms()[0]
    with pytest.raises(MalformedDocument):
        await current(store).begin()
    await store.database["run_rules"].update_one({"_id": "main:2"}, {"$set": {"group.min_turns": 1}})
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
