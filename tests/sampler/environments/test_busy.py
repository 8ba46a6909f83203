"""Full, absent and killed services: episodes wait without blame, the least loaded is chosen, claims leave full kinds."""

import asyncio
import time
from types import SimpleNamespace

import httpx
import pytest

from sampler.core.errors import EnvironmentBusy
from sampler.environments import choosing
from sampler.environments.choosing import Environments
from sampler.environments.client import EnvironmentClient
from sampler.environments.play_config import EnvironmentSettings
from sampler.environments.sampler import EnvironmentSampler
from shared.documents.run import EnvironmentService
from shared.documents.states import SlotStatus, Termination
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.commands.run_status import RunStatus, read_status
from tests.sampler.boxes import PATIENCE_S
from tests.sampler.environments.playing import one_episode, registered, task_of, worlds
from tests.sampler.environments.services import service
from tests.sampler.episodes import ended
from tests.sampler.running import running_sampler, until
from tests.shared.builders import claim

SAYS = {"messages": [{"role": "user", "content": "go"}], "status": "running", "finish": False}


class Controller:
    """A controller at the transport. `answers`: by host, a status; else it starts sessions."""

    def __init__(self, **answers: int) -> None:
        self.answers = answers
        self.started: list[str] = []
        self.tokens: set[str | None] = set()
        self.at_once = self.most_at_once = 0

    async def so_far(self) -> list[str]:
        return self.started

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if request.url.path.endswith("/start_sample"):
            self.tokens.add(request.headers.get("authorization"))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0)
            self.at_once -= 1
            if host in self.answers:
                return httpx.Response(self.answers[host], text="no room")
            self.started.append(host)
        return httpx.Response(200, json=SAYS, headers={"session_id": "1"})


def environments(
    controller: Controller, services: list[EnvironmentService], **config: object
) -> tuple[Environments, EnvironmentSettings]:
    options = EnvironmentSettings.model_validate({"environment_wait_s": 0.6, **config})

    async def listed() -> list[EnvironmentService]:
        return list(services)

    return Environments(listed, options, EnvironmentClient(5, 5, 64, httpx.MockTransport(controller))), options


def at(host: str, capacity: int, running: int = 0) -> EnvironmentService:
    url = f"http://{host}/api"
    return EnvironmentService(id=url, url=url, kinds=["lake"], capacity=capacity, running=running)


async def hold(places: Environments, kind: str, held: asyncio.Event) -> None:
    async with places.session(kind, 0, {}):
        await held.wait()


async def test_sessions_go_to_the_least_loaded_service_of_the_kind() -> None:
    controller, held = Controller(), asyncio.Event()
    other = EnvironmentService(id="o", url="http://other/api", kinds=["maze"], capacity=1000)
    places, _ = environments(controller, [at("a", 10, running=5), at("b", 20, running=4), other])
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(hold(places, "lake", held))
            await asyncio.sleep(0.01)  # one after the other: each sees the load of those before
        held.set()
    assert (controller.started.count("a"), controller.started.count("b")) == (1, 7)


async def test_a_full_kind_is_claimed_no_more_until_a_session_ends() -> None:
    controller, held = Controller(), asyncio.Event()
    places, _ = environments(controller, [at("a", 2)])
    holding = [asyncio.create_task(hold(places, "lake", held)) for _ in range(2)]
    await until(controller.so_far, lambda started: len(started) == 2)
    assert places.full_environments() == ["lake"], "by its own count, before the service is asked"
    with pytest.raises(EnvironmentBusy, match="all sessions of its services are in use"):
        await hold(places, "lake", held)
    held.set()
    await asyncio.wait(holding)
    assert places.full_environments() == []


async def test_a_kind_that_was_full_is_claimed_again_however_long_nothing_of_it_was_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services, held = [at("a", 2)], asyncio.Event()
    places, _ = environments(Controller(), services)
    held.set()
    await hold(places, "lake", held)
    services[:] = [at("a", 2, running=2)]
    monkeypatch.setattr(choosing, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 10))
    await places.refresh()
    assert places.full_environments() == ["lake"], "others play there"
    services[:] = [at("a", 2, running=0)]
    monkeypatch.setattr(choosing, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 3600))
    await places.refresh()
    assert places.full_environments() == []


async def test_who_waits_is_told_in_an_alarm_and_a_refusal_lets_the_service_rest() -> None:
    controller = Controller(a=406)
    places, _ = environments(controller, [at("a", 100)])
    waiting = asyncio.create_task(hold(places, "lake", asyncio.Event()))

    async def alarms() -> list[str]:
        return places.alarms()

    (alarm,) = await until(alarms, bool)
    assert alarm.startswith("no room in environment lake for 0 s (POST http://a/api/start_sample: HTTP 406: no room)")
    assert places.full_environments() == ["lake"]
    with pytest.raises(EnvironmentBusy):
        await waiting
    assert (places.alarms(), controller.started) == ([], [])


async def test_another_service_takes_the_session_of_one_that_refuses() -> None:
    controller = Controller(a=503)
    places, _ = environments(controller, [at("a", 100), at("b", 100, running=99)], environment_wait_s=30)
    held = asyncio.Event()
    held.set()
    await hold(places, "lake", held)
    assert controller.started == ["b"]


async def test_only_so_many_sessions_start_at_once() -> None:
    controller, held = Controller(), asyncio.Event()
    held.set()
    places, _ = environments(controller, [at("a", 100)], max_starting_environments=3)
    await asyncio.gather(*(hold(places, "lake", held) for _ in range(20)))
    assert (len(controller.started), controller.most_at_once) == (20, 3)


async def test_a_controller_that_starts_nothing_delays_no_other_and_is_told_in_time() -> None:
    """Its starts hang: an episode that waits for a place among them gives up in time, with an alarm."""
    held = asyncio.Event()
    controller = Controller()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "slow":
            await held.wait()
        return await controller(request)

    options = EnvironmentSettings.model_validate(
        {
            "environment_controllers": {"slow": "http://slow/api", "fast": "http://fast/api"},
            "max_starting_environments": 2,
            "environment_wait_s": 0.6,
        }
    )
    places = Environments(config=options, client=EnvironmentClient(30, 30, 64, httpx.MockTransport(answer)))
    slow = [asyncio.create_task(hold(places, "slow", held)) for _ in range(3)]
    await asyncio.sleep(0.1)  # two start, the third waits for a place
    (alarm,) = places.alarms()
    assert "2 sessions are starting at http://slow/api" in alarm
    assert places.full_environments() == ["slow"]
    async with asyncio.timeout(0.4), places.session("fast", 0, {}):
        pass
    with pytest.raises(EnvironmentBusy, match="2 sessions are starting at http://slow/api"):
        async with asyncio.timeout(PATIENCE_S):
            await slow[2]
    held.set()
    await asyncio.gather(*slow[:2])
    assert places.alarms() == []


async def test_a_service_that_says_retry_after_0_rests_too() -> None:
    asked: list[float] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(time.monotonic())
        return httpx.Response(406, text="no room", headers={"retry-after": "0"})

    options = EnvironmentSettings(environment_wait_s=1.2, environment_controllers={"db": "http://db/api"})
    places = Environments(config=options, client=EnvironmentClient(5, 5, 64, httpx.MockTransport(answer)))
    with pytest.raises(EnvironmentBusy):
        await hold(places, "db", asyncio.Event())
    assert len(asked) == 2


async def test_the_token_goes_to_the_runs_own_services_and_to_no_foreign_controller() -> None:
    controller, held = Controller(), asyncio.Event()
    held.set()
    foreign = {"db": "http://foreign:5020/api"}
    places, _ = environments(controller, [at("a", 1)], environment_controllers=foreign, environment_token="t")
    await hold(places, "db", held)
    assert controller.tokens == {None}
    await hold(places, "lake", held)
    assert controller.tokens == {None, "Bearer t"}


# ---------------------------------------------------------------------- with the store


async def test_an_episode_without_room_gives_its_slot_back_without_a_failure(store: Store) -> None:
    with service("--workers", "1", "--capacity", "1", worlds="Guess") as full:
        full.start("guess", 1)
        await registered(store, full.url, "guess", capacity=10)
        await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
        async with worlds(store, "3 {}".format, environment_wait_s=0.5) as (resources, engine):
            sampler, score = await one_episode(store, resources)
            record, slot, dispatches = await ended(store, sampler)
    assert (score, dispatches, engine.prompts) == (None, [], {}), "nothing was asked of the model"
    assert (slot.status, slot.failures) == (SlotStatus.OPEN, 0)
    assert (record.status, record.termination) == ("abandoned", Termination.ENVIRONMENT_BUSY.value)
    assert "all 1 sessions are in use" in (record.error or "")


async def test_a_claim_leaves_the_tasks_of_full_environments(store: Store) -> None:
    await store.tasks.insert_new([task_of(store, 0, "lake"), task_of(store, 1, "maze")])
    first = await claim(store, full_environments=["lake"])
    assert first.task.payload.metadata["environment"] == "maze"
    assert await claim(store, full_environments=["lake", "maze"]) is None
    assert (await claim(store)).task.payload.metadata["environment"] == "lake"


async def test_a_small_service_plays_a_large_group_and_no_slot_fails_for_want_of_room(store: Store) -> None:
    """Also of a kind that has no service yet: it waits for one, with an alarm."""
    await store.tasks.insert_new([task_of(store, seq, "guess", 1, num_generations=8) for seq in range(4)])
    options = {"poll_s": 0.02, "heartbeat_s": 0.1, "environment_wait_s": 1.0, "max_failures": 1, "max_turns": 3}

    async def now() -> RunStatus:
        return await read_status(store)

    async with running_sampler(store, EnvironmentSampler, **options):
        seen = await until(now, lambda seen: seen.workers and seen.workers[0]["alarms"])
        assert "no service of this environment is registered" in seen.workers[0]["alarms"][0]
        with service("--workers", "1", "--capacity", "3", worlds="Guess") as small:
            await registered(store, small.url, "guess", capacity=3)
            await until(store.tasks.count_slots, lambda counts: counts.get("scored") == 32)
            assert small.health()["sessions"] == 0
        seen = await now()
    assert seen.slots["train"]["failures"] == 0
    assert seen.failed_attempts == []


async def test_a_service_registers_with_its_load_and_leaves_at_sigterm(store: Store, mongod: Mongod) -> None:
    flags = ("--workers", "1", "--capacity", "7", "--run", store.run, "--heartbeat_s", "0.1")
    with service(*flags, worlds="Guess", DB_CONNECTION_STRING=mongod.connection_string) as one:
        (listed,) = await store.environments.live()
        assert (listed.url, listed.kinds, listed.capacity, listed.running) == (one.url, ["guess"], 7, 0)
        one.start("guess", 1)
        (busy,) = await until(store.environments.live, lambda found: found and found[0].running == 1)
        assert busy.version
        (row,) = (await read_status(store)).environments
        assert (row["url"], row["kinds"], row["running"], row["capacity"], row["live"]) == (
            one.url,
            "guess",
            1,
            7,
            True,
        )
        one.http.post("/cancel", headers={"session_id": "0"})
        one.process.terminate()
        await until(store.environments.all, lambda found: not found)


async def test_a_service_that_is_gone_is_no_failure_of_the_slots(store: Store) -> None:
    """It is listed for some seconds after its death: a start that does not reach it waits."""
    await registered(store, "http://127.0.0.1:9/api", "guess")
    await store.tasks.insert_new([task_of(store, 0, "guess", 7)])
    begun = time.monotonic()
    async with worlds(store, "3 {}".format, environment_wait_s=0.5) as (resources, _):
        sampler, _ = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (slot.status, slot.failures, record.termination) == (SlotStatus.OPEN, 0, "environment_busy")
    assert time.monotonic() - begun > 0.5
