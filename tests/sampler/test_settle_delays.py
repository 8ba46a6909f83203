"""A settler delayed at any of its commands, for longer than its lease, changes nothing when it continues."""

import asyncio

import pytest
from pymongo import AsyncMongoClient

from sampler.core.settlement.settle import settle
from shared.documents import DataClaim
from shared.documents.run import TrainedStep
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.audit.run import audit
from tests.late_commands import everything as every_document
from tests.late_commands import open_line
from tests.sampler.groups import EVERY_RULE, completed_group, everything, restore, varied_group
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import rules_number


async def train(store: Store, step: int) -> None:
    claim = DataClaim(trainer_generation=1, step=step)
    ready = await store.data.ready_groups("main", 1)
    for group in ready:
        await store.data.claim(group["records"], claim)
    groups = [(group["_id"], len(group["records"])) for group in ready]
    await store.data.commit_step("main", claim, max_trained_count=1)
    await store.steps.add(
        TrainedStep(id=f"main:{step}:1", policy="main", step=step, trainer_generation=1, groups=groups)
    )
    await store.versions.announce("main", step, f"/weights/{step}", {})


@pytest.mark.parametrize("kind", ["some are dropped", "none is dropped"])
async def test_a_settler_delayed_at_any_command_until_its_group_is_trained_changes_nothing(
    mongod: Mongod, store: Store, kind: str
) -> None:
    if kind == "some are dropped":
        task, config = await varied_group(store), make_config(EVERY_RULE)
    else:
        task, config = await completed_group(store, [1.0, 0.0, 0.5]), make_config({})
    task = task.model_copy(update={"rules": await rules_number(store, config)})
    before = await everything(store)
    held_up = 0
    async with open_line(mongod.port) as line:
        client: AsyncMongoClient[dict[str, object]] = AsyncMongoClient(
            f"mongodb://127.0.0.1:{line.port}/?directConnection=true", retryWrites=False
        )
        slow = Store(client, store.run)
        while True:
            await restore(store, before)
            for name in ("trained_steps", "policy_versions"):
                await store.database[name].delete_many({})
            line.hold(held_up + 1)
            settling = asyncio.create_task(settle(slow, task))
            waiting = asyncio.create_task(line.held.wait())
            await asyncio.wait([settling, waiting], return_when=asyncio.FIRST_COMPLETED)
            if not line.held.is_set():
                waiting.cancel()
                await settling
                break
            held_up += 1
            await settle(store, task)  # its lease is over: another settles the group
            await train(store, 1)
            expected = await every_document(store.database)
            line.let_go()
            await settling
            assert await every_document(store.database) == expected, f"held up at command {held_up}"
            assert await store.data.ready_groups("main", 1) == [], "nothing is left to train"
            report = await audit(store)
            assert report.ok, report
        await client.close()
    assert held_up >= 7
