"""Kill anything, lose nothing: `kill -9` of each part during a run, and the database afterwards."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shared.store import Store
from tandem.audit.run import audit
from tests.system.processes import Run, engine_of
from tests.system.test_loop import assert_every_stored_promise_holds, queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def at_step(store: Store, step: int) -> bool:
    newest = await store.versions.newest("main")
    return newest is not None and newest.step >= step


async def is_there(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def said(run: Run, name: str, text: str) -> bool:
    return text in await asyncio.to_thread(run.log, name)


async def episodes_running(store: Store) -> bool:
    return (await store.tasks.count_slots()).get("leased", 0) > 0


async def nothing_open(store: Store) -> bool:
    counts = (await store.tasks.count_by_status()).get("train", {})
    return not counts.get("running") and not counts.get("completed")


async def assert_sound(run: Run) -> None:
    async with Store.open(run.mongod.connection_string, run.name) as store:
        report = await audit(store)
        assert report.ok, report
        slots = await store.tasks.count_slots()
        assert set(slots) - {"scored", "failed", "failures"} == set(), slots


async def holds_slots(store: Store, pid: int) -> bool:
    """Is a slot leased by the process?"""
    where = {"status": "leased", "worker": {"$regex": f":{pid}$"}}
    return await store.database["tasks"].find_one({"slots": {"$elemMatch": where}}) is not None


@pytest.mark.thorough
async def test_a_stopped_sampler_releases_its_slots_and_a_killed_or_frozen_one_costs_only_time(
    tmp_path: Path,
) -> None:
    with Run(tmp_path, max_steps=4) as run:
        run.sampler_flags |= {"grace_s": "0.01", "lease_s": "60"}
        await queue_tasks(run)
        run.start_all()
        await run.until("episodes in flight", episodes_running)
        assert run.end("sampler0") == 0, run.log("sampler0")
        async with Store.open(run.mongod.connection_string, run.name) as store:
            slots = await store.tasks.count_slots()
            assert slots.get("leased", 0) == 0, "released at once, not after their leases"
            assert slots["failures"] == 0, "without blame"
        run.sampler_flags["lease_s"] = "4"  # the slots of the killed one are awaited
        run.start_sampler("sampler1")
        await run.until("episodes in flight again", episodes_running)
        run.end("sampler1", signal.SIGKILL)
        run.start_sampler("sampler2")
        frozen = run.processes["sampler2"].pid

        async def is_frozen_with_slots(store: Store) -> bool:
            os.kill(frozen, signal.SIGSTOP)
            if await holds_slots(store, frozen):
                return True
            os.kill(frozen, signal.SIGCONT)
            return False

        async def were_taken(store: Store) -> bool:
            return not await holds_slots(store, frozen)

        await run.until("a moment in which it plays, to freeze it", is_frozen_with_slots)
        run.start_sampler("sampler3")
        await run.until("its leases to be taken", were_taken)
        os.kill(frozen, signal.SIGCONT)
        assert run.wait("trainer") == 0, run.log("trainer")
        await run.until("every opened task to be settled", nothing_open)
        for name in ("sampler2", "sampler3"):
            assert run.end(name) == 0, f"it goes on when it wakes:\n{run.log(name)}"
        assert "lease lost" in (tmp_path / "sampler2.log").read_text()
        await assert_sound(run)


@pytest.mark.thorough
async def test_a_killed_trainer_continues_from_its_checkpoint_with_exact_accounting(tmp_path: Path) -> None:
    with Run(tmp_path, max_steps=12) as run:
        run.trainer_flags |= {"save_steps": "5", "wait_for_tasks_s": "900"}
        await queue_tasks(run, first=20)  # of ten steps: it is killed before the twelfth, however late
        run.start_all()
        checkpoint = tmp_path / "out" / "checkpoints" / "step-000005"  # is written while the next steps are taken
        await run.until("step 6", lambda store: at_step(store, 6))
        await run.until("the checkpoint of step 5", lambda _: is_there(checkpoint))
        run.end("trainer", signal.SIGKILL)  # its checkpoint is that of step 5: later steps are taken again
        async with Store.open(run.mongod.connection_string, run.name) as store:
            assert not await at_step(store, 12), "killed in the middle"
        await queue_tasks(run)
        run.start_trainer()
        assert run.wait("trainer") == 0, run.log("trainer")
        assert "at step 5" in run.log("trainer") or "at step 10" in run.log("trainer")
        await run.until("every opened task to be settled", nothing_open)
        assert run.end("sampler0") == 0
        await assert_sound(run)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            used = await store.data.find({"trained_count": {"$gt": 0}})
            by_step = {s: [d for d in used if d.trained_steps == [s]] for s in range(1, 13)}
            assert {s: len({d.task for d in data}) for s, data in by_step.items()} == dict.fromkeys(range(1, 13), 2)
            surviving = [v.step for v in await store.versions.all("main") if v.withdrawn_to is None]
            assert sorted(set(surviving)) == list(range(13))


async def test_a_killed_engine_and_an_outage_of_the_database_cost_only_time(tmp_path: Path) -> None:
    with Run(tmp_path, max_steps=5) as run:
        await queue_tasks(run)
        run.start_all()
        await run.until("episodes in flight", episodes_running)
        engine_of(run).kill()
        await run.until("the keeper to notice", lambda _: said(run, "keeper", "engine ended"))
        await run.until("a step with data of the next engine", lambda store: at_step(store, 1))
        assert run.mongod.process is not None
        run.mongod.process.kill()
        run.mongod.process.wait(60)
        await asyncio.sleep(3)
        run.mongod.start()
        assert run.wait("trainer") == 0, run.log("trainer")
        await run.until("every opened task to be settled", nothing_open)
        assert run.end("sampler0") == 0, run.log("sampler0")
        await assert_sound(run)
        await assert_every_stored_promise_holds(run, published=["full"] * 6)
