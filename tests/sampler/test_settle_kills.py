"""A settler killed at any of its commands, before or after the server executed it, is replaced with the same result, whatever
the settings of the process that replaces it."""

from functools import partial

import pytest

from sampler.core.service.settling import Settling
from sampler.core.settlement.current_rules import CurrentRules
from sampler.core.settlement.declared_rules import declared
from sampler.core.settlement.settle import settle
from sampler.settings import SamplerConfig
from shared.store import Store
from tandem.audit.run import audit
from tests.killer import Killer
from tests.sampler.groups import EVERY_RULE, completed_group, everything, restore, timeless, varied_group
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import rules_number


@pytest.mark.parametrize("kind", ["some are dropped", "all are dropped"])
async def test_a_settler_killed_at_any_command_is_completed_by_another_with_the_same_result(
    store: Store, mortal: tuple[Store, Killer], kind: str
) -> None:
    of_the_run, killer = mortal
    if kind == "some are dropped":
        task, config = await varied_group(store), make_config(EVERY_RULE)
    else:
        task, config = await completed_group(store, [1.0, 1.0, None]), make_config({"zero_variance_tolerance": 0.1})
    task = task.model_copy(update={"rules": await rules_number(store, config)})
    before = await everything(store)
    await settle(store, task)
    expected = timeless(await everything(store))
    deaths, half_done = 0, 0
    while True:
        await restore(store, before)
        dying = Store(of_the_run.client, store.run)  # a process that has read nothing yet
        if not await killer.dies(deaths + 1, partial(settle, dying, task)):
            break
        deaths += 1
        half_done += timeless(await everything(store)) not in (timeless(before), expected)
        await settle(store, task)
        assert timeless(await everything(store)) == expected, f"killed at event {deaths}"
    assert deaths >= 14, "two events of every command"
    assert half_done >= 6, "it left something half done"
    await restore(store, before)
    await settle(store, task)
    await settle(store, task)
    assert timeless(await everything(store)) == expected


OTHER_SETTINGS = {
    "advantage": "mean",
    "min_group_size": 8,
    "min_turns": 9,
    "mask_overlong": True,
    "balance_sample": True,
    "efficient_rewarding": True,
    "adv_scaling": 3.0,
    "other_policies": {"main2": "."},
    "frozen_policies": ["main2"],
}


async def test_a_settler_killed_at_any_command_is_completed_by_a_process_with_other_settings_and_nothing_differs(
    store: Store, mortal: tuple[Store, Killer]
) -> None:
    """What the process has that goes on, it was never asked for: it started with these settings when the run had them."""
    of_the_run, killer = mortal
    first, second = make_config({"advantage": "zscore"}), make_config(OTHER_SETTINGS)
    await rules_number(store, first)
    await completed_group(store, [1.0, 0.0, 1.0, 0.0])
    await rules_number(store, second)  # the newest ones, which the second process agrees with

    async def settle_all(of: Store, config: SamplerConfig) -> None:
        rules = CurrentRules(of, config, config.run)
        await rules.refresh()
        await Settling(of, config.run, config, rules, None).settle_all()

    before = await everything(store)
    await settle_all(store, first)
    expected = timeless(await everything(store))
    advantages = sorted({d["advantage"] for d in expected["dispatched_sampling_tasks"]})
    assert advantages == pytest.approx([-0.866024, 0.866024], abs=1e-5)
    deaths, half_done = 0, 0
    while True:
        await restore(store, before)
        dying = Store(of_the_run.client, store.run)
        if not await killer.dies(deaths + 1, partial(settle_all, dying, first)):
            break
        deaths += 1
        half_done += timeless(await everything(store)) not in (timeless(before), expected)
        await store.database["tasks"].update_many(
            {"status": "completed"}, {"$set": {"free_at": before["tasks"][0]["free_at"]}}
        )
        await settle_all(store, second)
        assert timeless(await everything(store)) == expected, f"killed at event {deaths}"
        assert (report := await audit(store)).ok, report
    assert deaths >= 16
    assert half_done >= 6


async def test_no_setting_of_a_process_reaches_settlement() -> None:
    """All that decides it is in the run's rules: whatever `declared` reads is compared at every start."""
    assert declared(make_config(OTHER_SETTINGS), "").settlement != declared(make_config({}), "").settlement
    assert "config" not in settle.__annotations__
