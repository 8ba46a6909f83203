"""`tandem rules`: shows a run's rules, and changes them by a new number; what is no rule is refused with what is expected."""

import asyncio
import json

import pytest
from click.testing import Result

from shared.documents.rules import RunRules
from shared.rules.run_rules import Rules
from shared.store import Store
from tests.sampler.test_engine_lists import up
from tests.shared.episodes import whole_run
from tests.tandem.commands.commands import Command


async def declare(store: Store) -> None:
    """As the first sampler does."""
    await store.rules.add(RunRules.of("main", 1, Rules(template_digest="d1").sections(), "sampler:a:1"))


async def ruled(tandem: Command, *arguments: str) -> Result:
    return await asyncio.to_thread(tandem, "rules", *arguments)


async def test_rules_are_declared_shown_and_changed_by_a_number_with_a_date_and_a_name(
    tandem: Command, store: Store
) -> None:
    assert "has no rules of policy main yet" in (await ruled(tandem, store.run)).stdout
    early = await ruled(tandem, store.run, "--set", "advantage=zscore")
    assert (early.exit_code, "the first sampler or gateway that starts declares them" in early.stderr) == (2, True)
    await declare(store)
    assert (await ruled(tandem, store.run, "--set", "advantage=zscore", "--set", "temperature=0.8")).exit_code == 0
    changed = await ruled(tandem, store.run, "--set", "min_turns=2", "--set", "reserve_context_error_count=1")
    assert f"run {store.run}: rules 3 of policy main, since 2" in changed.stdout
    third, second, first = await store.rules.all("main")
    assert (first.group["advantage"], first.sampling["temperature"], first.by) == ("mean", 1.0, "sampler:a:1")
    assert (second.group["advantage"], second.group["min_turns"], second.sampling["temperature"]) == ("zscore", 0, 0.8)
    assert (third.group["advantage"], third.group["min_turns"]) == ("zscore", 2)
    assert "@" in third.by
    assert (await ruled(tandem, store.run, "--set", "reserve_context_error_count=none")).exit_code == 0
    shown = (await ruled(tandem, store.run)).stdout
    assert "rules 4 of policy main, since 2" in shown
    assert "reserve_context_error_count 1 → none" in shown
    assert "min_turns 0 → 2, reserve_context_error_count none → 1" in shown
    printed = json.loads((await ruled(tandem, store.run, "--json")).stdout)
    assert [(one["_id"], one["number"]) for one in printed] == [(f"main:{n}", n) for n in (4, 3, 2, 1)]
    listed = await asyncio.to_thread(tandem, "show", store.run)
    assert "rules 4 of policy main, since 2" in listed.stdout
    assert "advantage=zscore" in listed.stdout


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("advantage=zscroe", 'did you mean "zscore"?'),
        (
            "advantge=zscore",
            "advantge is 'zscore'; no rule has this name; expected one of",
        ),
        ("min_turns=-1", "min_turns is -1; Input should be greater than or equal to 0"),
        ("min_turns=true", "min_turns is True; Input should be a valid integer"),
        ("min_turns=1.5", "min_turns is 1.5"),
        ("adv_scaling=NaN", "adv_scaling is "),
        ("adv_scaling=1e999", "adv_scaling is "),
        ("mask_overlong=yes", "mask_overlong is 'yes'; Input should be a valid boolean"),
        ("gigpo_mode=mean", "gigpo_mode is 'mean'"),
        ("frozen_policies=judge", "frozen_policies is 'judge'; Input should be a valid array"),
        ("temperature=0", "temperature is 0"),
        ("max_turns=0", "max_turns is 0"),
        ("agent_crash=never", "agent_crash is 'never'"),
        ("poll_s=1", "poll_s is 1; no rule has this name"),
        ("min_turns", "--set is 'min_turns'; expected SETTING=VALUE"),
        ("advantage=mean", "say this already"),
        ("=1", "no rule has this name"),
    ],
)
async def test_what_is_no_rule_is_refused_and_nothing_is_written(
    tandem: Command, store: Store, argument: str, said: str
) -> None:
    await declare(store)
    result = await ruled(tandem, store.run, "--set", argument)
    assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert len(await store.rules.all("main")) == 1


async def test_rules_of_a_combination_that_means_nothing_are_refused(tandem: Command, store: Store) -> None:
    await whole_run(store, tasks=1)
    await declare(store)
    result = await ruled(tandem, store.run, "--set", "mask_overlong=true", "--set", "reserve_context_error_count=0")
    assert result.exit_code == 2
    assert "mask_overlong keeps over-long episodes" in result.stderr


async def test_a_truncation_that_a_live_engine_cannot_train_is_refused(tandem: Command, store: Store) -> None:
    await declare(store)
    service = up("http://127.0.0.1:9", None)
    await store.services.heartbeat(service.model_copy(update={"kind": "sglang"}))
    refused = await ruled(tandem, store.run, "--set", "top_p=0.9")
    assert refused.exit_code == 2
    assert "engine http://127.0.0.1:9: top_p 0.9 in training, and sglang reports" in " ".join(refused.stderr.split())
    assert len(await store.rules.all("main")) == 1
    await store.services.heartbeat(service.model_copy(update={"kind": "vllm"}))
    assert (await ruled(tandem, store.run, "--set", "top_p=0.9")).exit_code == 0
