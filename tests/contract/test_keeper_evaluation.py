"""A keeper during an evaluation of a version: its engine stays there, or goes back, and continues when the round is over."""

from collections.abc import Awaitable, Callable

from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.store import Store
from tests.contract.engines import Engine
from tests.contract.flights import Until
from tests.contract.kept import POLICY, Kept, Wire, keeping
from tests.shared.builders import claim, make_task


async def queue(store: Store, version: int, seq: int) -> None:
    await store.tasks.insert_new([make_task(seq, split="eval", epoch=version, at_version=version, num_generations=1)])


async def play(store: Store, version: int) -> None:
    """The one episode of a round, from its claim to its end."""
    held = await claim(store, split="eval", served_versions=[version])
    assert held.task.at_version == version
    await store.tasks.finish_slot(held, 1.0)


def looked_again(wire: Wire) -> Callable[[], Awaitable[bool]]:
    """Waits until the keeper has polled several times, measured by its load requests."""
    before = len(wire.asked)

    async def ask() -> bool:
        return len(wire.asked) > before + 10

    return ask


async def test_an_engine_stays_on_the_version_of_an_open_round_until_its_last_episode_has_ended(
    engine: Engine, store: Store, until: Until
) -> None:
    wire = Wire()
    async with keeping(engine, store, until, wire) as kept:
        await queue(store, 0, seq=0)
        newest = await kept.announce(engine.weights(1))
        await until(looked_again(wire))
        await kept.serves(0)
        assert (await kept.ask()).generation.version_runs == [[0, 8]]
        await play(store, 0)
        await kept.serves(newest)


async def test_rounds_are_served_in_order_including_versions_older_than_the_engines(
    engine: Engine, store: Store, until: Until
) -> None:
    async with keeping(engine, store, until) as kept:
        for number in (1, 2):
            await kept.serves(await kept.announce(engine.weights(number)))
        await queue(store, 0, seq=0)
        await queue(store, 1, seq=1)
        for version in (0, 1):
            await kept.serves(version)
            await play(store, version)
        await kept.serves(2)


async def test_only_the_engine_whose_url_sorts_first_stays_on_the_evaluated_version(
    engine: Engine, store: Store, until: Until
) -> None:
    async with keeping(engine, store, until) as kept:
        await register(store, "http://0.example")
        await queue(store, 0, seq=0)
        newest = await kept.announce(engine.weights(1))
        await until(lambda: serves(kept, newest))


async def register(store: Store, url: str) -> None:
    other = InferenceService(id=url, url=url, policy=POLICY, version=0, status=ServiceStatus.UP, heartbeat_s=3600)
    await store.services.heartbeat(other)


async def serves(kept: Kept, version: int) -> bool:
    services = await kept.store.services.live(POLICY)
    return any(s.url == kept.engine.url and (s.version, s.status) == (version, ServiceStatus.UP) for s in services)
