"""A short form of `python -m tests.sampler.gateway.hostile`, which attacks for ten minutes."""

import argparse
from pathlib import Path

import pytest

from tests.sampler.gateway.hostile import Attack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_clients_without_any_order_and_killed_gateways_leave_each_slot_settled_once(tmp_path: Path) -> None:
    attack = Attack(tmp_path, argparse.Namespace(seconds=12.0, tasks=24, clients=2, seed=1))
    assert await attack.run() == []
    assert attack.done["slots scored"] + attack.done["slots failed"] == 48
    for what in ("told claim", "told reply", "told end"):
        assert attack.done[what], attack.log("client0") + attack.log("gateway0")
    assert attack.done["kill"] + attack.done["freeze"] + attack.done["stop"] > 0
