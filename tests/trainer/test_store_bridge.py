"""The end of a bridge while coroutines are under way in its thread."""

import asyncio
import gc

import pytest

from shared.processes.mongod import Mongod
from trainer.process.store_bridge import StoreBridge

SLOW_S = 0.5


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "forgotten"])
def test_what_is_under_way_ends_before_the_bridge_and_leaves_nothing(mongod: Mongod, cancelled: bool) -> None:
    ended: list[str] = []

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(SLOW_S)  # as a verb does, whose command is on its way
            ended.append("work")
            raise

    began = asyncio.Event()
    with StoreBridge(mongod.connection_string, "ending") as bridge:
        future = bridge.background(work())
        bridge(began.wait())
        if cancelled:
            future.cancel()
    assert ended == ["work"]
    gc.collect()  # a task that was destroyed while it was pending is an error here, by pytest's settings
