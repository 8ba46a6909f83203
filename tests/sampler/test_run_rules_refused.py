"""A process that is given another value than the run's rules have is refused at its start, with both values and the remedy."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sampler.core.settlement.current_rules import CurrentRules
from sampler.settings import SamplerConfig
from shared.configuration.sections import settings_of
from shared.documents.rules import SECTIONS as RULE_SECTIONS
from shared.errors import ConfigError
from shared.processes.mongod import Mongod
from shared.rules.run_rules import SECTIONS, Rules
from shared.store import Store
from tests.sampler.declared_rules import current, of_sources
from tests.sampler.episodes import MODEL, TEMPLATE


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
        "router_replay": True,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.05,
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
