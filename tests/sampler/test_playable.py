"""Tasks whose demands a sampler cannot meet: reported at once, never retried, and left to other samplers."""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.service.kinds import scores_itself
from sampler.scorers import Score
from shared.documents import Slot, TaskPayload
from shared.documents.states import SlotStatus, Termination
from shared.errors import ConfigError
from shared.store import Store
from tandem.commands.run_status import read_status
from tests.sampler.boxes import PATIENCE_S, SERVERS
from tests.sampler.running import running_sampler, until
from tests.shared.builders import make_task

OPTIONS = {"poll_s": 0.02, "heartbeat_s": 0.05}


class Own(MCPSampler):
    """Scores by itself, and has no tools."""

    uses_tools = False

    async def run(self) -> Termination:
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(0.5)


async def insert(store: Store, *payloads: dict[str, Any], first: int = 0) -> None:
    tasks = [
        make_task(seq, num_generations=1).model_copy(update={"payload": TaskPayload(query="2+2?", answer="4", **given)})
        for seq, given in enumerate(payloads, start=first)
    ]
    await store.tasks.insert_new(tasks)


async def slots(store: Store, count: int) -> list[Slot]:
    tasks = [await store.tasks.get(f"main:train:0:t{seq}") for seq in range(count)]
    return [slot for task in tasks if task is not None for slot in task.slots]


async def scored(store: Store) -> int:
    return (await store.tasks.count_slots()).get("scored", 0)


@pytest.mark.parametrize(
    ("payloads", "reasons"),
    [
        ([{"scorer": "maths"}, {"scorer": "maths"}], ["scorer 'maths' is unknown; expected one of agentcpm"]),
        ([{"scorer": "agentcpm"}], ["scorer 'agentcpm' needs a judge; set --agent_config_path"]),
        (
            [{"tools": ["search"]}, {"scorer": "x"}],
            ["the task needs tool 'search', but this sampler has no", "scorer 'x'"],
        ),
    ],
)
async def test_a_sampler_that_can_play_no_open_task_exits_at_its_start_with_the_reasons(
    store: Store, payloads: list[dict[str, Any]], reasons: list[str]
) -> None:
    await insert(store, *payloads)
    with pytest.raises(ConfigError, match=f"this sampler can play none of the {len(payloads)} open tasks: ") as caught:
        async with running_sampler(store, **OPTIONS) as service:
            await until(lambda: _is_over(service), bool)
    assert all(reason in str(caught.value) for reason in reasons)
    assert {(slot.status, slot.attempt) for slot in await slots(store, 2)} == {(SlotStatus.OPEN, 0)}


async def test_unplayable_tasks_are_left_to_other_samplers_even_if_they_arrive_later(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    await insert(store, {"scorer": "maths"}, {}, {"tools": ["search"]})
    async with running_sampler(store, **OPTIONS):
        await until(lambda: scored(store), lambda count: count == 1)
        await insert(store, {"scorer": "agentcpm"}, {"scorer": "agentcpm"}, {"scorer": "exact_match"}, first=3)
        await until(lambda: scored(store), lambda count: count == 2)
        seen = await until(lambda: read_status(store), lambda seen: len(seen.workers[0]["alarms"]) == 3)
    told = [
        "1 open tasks wait for another sampler: scorer 'maths' is unknown",
        "1 open tasks wait for another sampler: the task needs tool 'search'",
        "task main:train:0:t3 and others like it wait for another sampler: scorer 'agentcpm' needs a judge",
    ]
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    for found in (errors, seen.workers[0]["alarms"]):
        assert [any(one.startswith(text) for one in found) for text in told] == [True] * 3, found
    assert len(errors) == 3, "each is told once"
    states = [slot.status for slot in await slots(store, 6)]
    left, played = SlotStatus.OPEN, SlotStatus.SCORED
    assert states == [left, played, left, left, left, played]
    assert {slot.failures for slot in await slots(store, 6)} == {0}
    async with running_sampler(store, Own, **OPTIONS):
        await until(lambda: scored(store), lambda count: count == 6)


def test_a_class_that_chooses_its_scorer_plays_tasks_with_any_scorer() -> None:
    class Choosing(MCPSampler):
        @property
        def scorer_name(self) -> str:
            return "exact_match"

    assert [scores_itself(kind) for kind in (MCPSampler, Own, Choosing)] == [False, True, True]


async def test_tools_that_no_server_offers_are_reported_at_the_start(
    store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Their tasks are tried all the same: the list may grow."""
    caplog.set_level(logging.ERROR)
    await insert(store, {"tools": ["ehco"]}, {"exclude_tools": ["none_such"]}, {"tools": ["echo"]}, {})
    servers = tmp_path / "servers.json"
    box = {"command": sys.executable, "args": [str(SERVERS / "box.py"), "stdio"]}
    servers.write_text(json.dumps({"mcpServers": {"box": box}}))

    async def told() -> list[str]:
        return [record.message for record in caplog.records if record.message.startswith("1 open tasks: ")]

    options = {"mcp_manager_url": str(servers), "retry_delay_s": 3600, "tool_open_s": PATIENCE_S}
    async with running_sampler(store, **OPTIONS, **options):
        await until(lambda: scored(store), lambda count: count == 2)
        missing, denied = sorted(await until(told, lambda texts: len(texts) == 2))
    assert missing.startswith("1 open tasks: tool 'ehco' is allowed, but not offered; the nearest offered: box.echo")
    assert denied.startswith("1 open tasks: tool 'none_such' is denied, but not offered")


async def _is_over(service: "asyncio.Task[None]") -> bool:
    return service.done()
