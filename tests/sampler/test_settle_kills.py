"""A settler killed at any of its commands, before or after the server executed it, is replaced with the same result."""

import pytest

from sampler.settlement.settle import settle
from shared.store import Store
from tests.killer import Killer
from tests.sampler.groups import EVERY_RULE, completed_group, everything, restore, timeless, varied_group
from tests.sampler.settlement_cases import make_config


@pytest.mark.parametrize("kind", ["some are dropped", "all are dropped"])
async def test_a_settler_killed_at_any_command_is_completed_by_another_with_the_same_result(
    store: Store, mortal: tuple[Store, Killer], kind: str
) -> None:
    dying, killer = mortal
    if kind == "some are dropped":
        task, config = await varied_group(store), make_config(EVERY_RULE)
    else:
        task, config = await completed_group(store, [1.0, 1.0, None]), make_config({"zero_variance_tolerance": 0.1})
    before = await everything(store)
    await settle(store, task, config)
    expected = timeless(await everything(store))
    deaths, partial = 0, 0
    while True:
        await restore(store, before)
        if not await killer.dies(deaths + 1, lambda: settle(dying, task, config)):
            break
        deaths += 1
        partial += timeless(await everything(store)) not in (timeless(before), expected)
        await settle(store, task, config)
        assert timeless(await everything(store)) == expected, f"killed at event {deaths}"
    assert deaths >= 14, "two events of every command"
    assert partial >= 6, "it left something half done"
    await restore(store, before)
    await settle(store, task, config)
    await settle(store, task, config)
    assert timeless(await everything(store)) == expected
