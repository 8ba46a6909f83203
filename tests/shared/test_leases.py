"""The lease of a device: its holder computes only while every live engine on it sleeps, and no engine wakes meanwhile."""

import asyncio
import random

import pytest

from shared.documents.leases import LeaseClaim
from shared.documents.states import LeaseKind, LeaseState
from shared.errors import DataError
from shared.store import Store
from shared.store.pipelines import EPOCH

DEVICE = "gpu:h:0"
LONG_S = 600.0


async def device(store: Store) -> str:
    return (await store.leases.ensure(LeaseKind.GPU, "h:0")).id


async def claimed(store: Store, holder: str = "t1") -> LeaseClaim:
    found = await store.leases.claim(DEVICE, holder, LONG_S)
    assert found is not None
    return found


async def awake(store: Store, occupant: str = "k1") -> None:
    await store.leases.occupy(DEVICE, occupant, f"http://{occupant}", LONG_S, asleep=False)


async def end_lease(store: Store) -> None:
    """As if the holder's time had run out."""
    await store.database["leases"].update_many({}, {"$set": {"free_at": EPOCH}})


async def silence(store: Store, occupant: str) -> None:
    """As if the occupant had died a while ago."""
    await store.database["leases"].update_one({"occupants.id": occupant}, {"$set": {"occupants.$.free_at": EPOCH}})


async def test_a_device_is_taken_only_after_every_engine_on_it_has_confirmed(store: Store) -> None:
    await device(store)
    await awake(store, "k1")
    await awake(store, "k2")
    claim = await claimed(store)
    assert not await store.leases.take(claim)
    assert await store.leases.confirm(DEVICE, "k1", claim.attempt)
    assert not await store.leases.take(claim)
    assert await store.leases.confirm(DEVICE, "k2", claim.attempt)
    assert await store.leases.take(claim)
    assert (await store.leases.get(DEVICE)).state is LeaseState.HELD


async def test_a_claimed_device_is_not_claimed_by_another(store: Store) -> None:
    await device(store)
    claim = await claimed(store)
    assert await store.leases.claim(DEVICE, "t2", LONG_S) is None
    assert await store.leases.claim(DEVICE, "t1", LONG_S) == claim, "asked again, its own is found"
    await store.leases.release(claim)
    second = await claimed(store, "t2")
    assert second.attempt == claim.attempt + 1


async def test_of_simultaneous_claims_one_succeeds(store: Store) -> None:
    await device(store)
    found = await asyncio.gather(*(store.leases.claim(DEVICE, f"t{k}", LONG_S) for k in range(16)))
    assert sum(claim is not None for claim in found) == 1


async def test_an_engine_does_not_wake_while_the_device_is_claimed(store: Store) -> None:
    await device(store)
    await awake(store)
    claim = await claimed(store)
    assert await store.leases.confirm(DEVICE, "k1", claim.attempt)
    assert not await store.leases.wake(DEVICE, "k1", claim.attempt, LONG_S)
    assert await store.leases.take(claim)
    assert not await store.leases.wake(DEVICE, "k1", claim.attempt, LONG_S)
    await store.leases.release(claim)
    assert await store.leases.wake(DEVICE, "k1", claim.attempt, LONG_S)
    assert not await store.leases.confirm(DEVICE, "k1", claim.attempt), "of a claim that is over"


async def test_the_lease_of_a_killed_holder_ends_by_the_servers_clock_for_good(store: Store) -> None:
    await device(store)
    await awake(store)
    claim = await claimed(store)
    await store.leases.confirm(DEVICE, "k1", claim.attempt)
    assert await store.leases.take(claim)
    assert await store.leases.renew(claim, LONG_S)
    await end_lease(store)
    assert not await store.leases.is_held(claim)
    assert not await store.leases.renew(claim, LONG_S), "an engine may have begun to wake"
    assert not await store.leases.take(claim)
    assert await store.leases.wake(DEVICE, "k1", claim.attempt, LONG_S)
    assert not await store.leases.renew(claim, LONG_S)
    assert (await claimed(store, "t2")).attempt == claim.attempt + 1


async def test_a_holder_that_lost_its_lease_changes_nothing_of_the_next_ones(store: Store) -> None:
    await device(store)
    first = await claimed(store)
    await end_lease(store)
    second = await claimed(store, "t2")
    assert not await store.leases.renew(first, LONG_S)
    assert not await store.leases.take(first)
    await store.leases.release(first)
    assert await store.leases.take(second)


async def test_an_engine_whose_keeper_died_is_not_waited_for(store: Store) -> None:
    await device(store)
    await awake(store, "k1")
    claim = await claimed(store)
    assert not await store.leases.take(claim)
    await silence(store, "k1")
    assert await store.leases.take(claim)


async def test_an_engine_that_starts_on_a_claimed_device_waits(store: Store) -> None:
    await device(store)
    claim = await claimed(store)
    seen = await store.leases.occupy(DEVICE, "k1", "http://k1", LONG_S, asleep=True)
    mine = seen.occupant("k1")
    assert mine is not None
    assert mine.asleep_for == claim.attempt
    assert await store.leases.take(claim), "it does not use the device yet"
    assert not await store.leases.wake(DEVICE, "k1", claim.attempt, LONG_S)
    await store.leases.release(claim)
    assert await store.leases.wake(DEVICE, "k1", claim.attempt, LONG_S)


async def test_an_engine_that_counted_as_dead_is_waited_for_once_it_wakes(store: Store) -> None:
    await device(store)
    await store.leases.occupy(DEVICE, "k1", "http://k1", LONG_S, asleep=True)
    await silence(store, "k1")
    assert await store.leases.wake(DEVICE, "k1", 0, LONG_S)
    assert not await store.leases.take(await claimed(store))


async def test_an_occupant_that_left_is_not_waited_for(store: Store) -> None:
    await device(store)
    await awake(store)
    await store.leases.leave(DEVICE, "k1")
    assert await store.leases.take(await claimed(store))
    assert not await store.leases.stay(DEVICE, "k1", LONG_S)


async def test_occupants_that_died_long_ago_are_forgotten(store: Store) -> None:
    await device(store)
    for number in range(20):
        await awake(store, f"k{number}")
        await silence(store, f"k{number}")
    assert len((await store.leases.get(DEVICE)).occupants) <= 2


async def test_a_lease_that_was_never_made_is_an_error(store: Store) -> None:
    with pytest.raises(DataError, match=r"lease gpu:x: there is none"):
        await store.leases.claim("gpu:x", "t1", LONG_S)


@pytest.mark.parametrize("seed", range(3))
async def test_in_any_order_of_events_a_held_device_has_no_engine_awake(store: Store, seed: int) -> None:
    """Trainers and keepers act in random order, also on what they knew before; leases end at random."""
    draw, leases = random.Random(seed), store.leases
    await device(store)
    for occupant in ("k1", "k2"):
        await awake(store, occupant)
    claims: list[LeaseClaim] = []
    taken = 0
    for number in range(80):
        asks = not claims or draw.random() < 0.3
        if asks and (new := await leases.claim(DEVICE, f"t{number}", LONG_S)):
            claims.append(new)
        occupant = draw.choice(("k1", "k2"))
        claim = claims[-1] if draw.random() < 0.7 else draw.choice(claims)
        taken += await draw.choice(
            (
                lambda: leases.take(claim),  # noqa: B023  # called at once
                lambda: leases.renew(claim, LONG_S),  # noqa: B023
                lambda: leases.confirm(DEVICE, occupant, claim.attempt),  # noqa: B023
                lambda: leases.confirm(DEVICE, occupant, claim.attempt),  # noqa: B023
                lambda: leases.wake(DEVICE, occupant, claim.attempt, LONG_S),  # noqa: B023
            )
        )() and await leases.is_held(claim)
        if draw.random() < 0.15:
            await draw.choice((lambda: leases.release(claim), lambda: end_lease(store)))()  # noqa: B023
        held = [each for each in claims[-4:] if await leases.is_held(each)]
        assert len(held) <= 1
        if held:
            assert all(one.asleep_for is not None for one in (await leases.get(DEVICE)).occupants)
    assert taken, "the device was used"
