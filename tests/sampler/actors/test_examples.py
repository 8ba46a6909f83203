"""The examples of docs/bring/actors.md: their tasks, played with the local engine; code is run by MCP-Docker's python tool."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("transformers")

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.service.kinds import SamplerKinds
from sampler.scorers import import_scorers
from shared.documents import DispatchedSamplingTask, Record
from shared.store import Store
from shared.tasks.files import ImportTarget, import_task_file
from tandem.audit.run import audit
from tests.sampler.engine.local.harness import Server, run_engine
from tests.sampler.engines import Up
from tests.sampler.episodes import LIMITS, MODEL, resources, says
from tests.sampler.mcp_docker.gateways import Gateway, gateway
from tests.sampler.pools import fields_of
from tests.sampler.settling import settle_next
from tests.shared.builders import claim

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[3] / "assets" / "actors"
SETTINGS: dict[str, Any] = yaml.safe_load((EXAMPLES / "actors.yml").read_text(encoding="utf-8"))["sampler"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    with run_engine(MODEL, "--weight-version", "0") as server:
        yield server


@pytest.fixture(scope="module")
def python_tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    servers = json.loads((EXAMPLES / "mcp_docker.json").read_text(encoding="utf-8"))["mcpServers"]
    with gateway(tmp_path_factory.mktemp("python"), servers) as started:
        yield started


@asynccontextmanager
async def local(store: Store, engine: Server, **options: Any) -> AsyncIterator[Resources]:
    """What the episodes share: the example's settings, and the local engine."""
    import_scorers(SETTINGS["scorer_modules"])
    given = {**SETTINGS, "max_new_tokens": 24, **options}

    async def services() -> Sequence[Up]:
        return [Up(engine.url, version=0)]

    async with EngineClient() as client, resources(store, says(""), **given) as shared:
        pool = EnginePool(client, services, LIMITS)
        yield Resources(**{**fields_of(shared), "pool": pool, "every_version": {"main": pool}})
        await pool.close()


async def play_all(store: Store, file: str, shared: Resources, generations: int = 2) -> dict[str, Record]:
    """Every episode of the file, played and settled; the records of the scored ones."""
    await import_task_file(store, EXAMPLES / file, ImportTarget("train", num_generations=generations))
    kinds = SamplerKinds.of(shared.config)
    count = len((EXAMPLES / file).read_text(encoding="utf-8").splitlines())
    for _ in range(count * generations):
        got = await claim(store)
        sampler: AsyncSampler = kinds.of_task(got.task.payload.sampler)(shared, got)
        assert await play(sampler) is not None, sampler.episode
    while await settle_next(store, "w", shared.config) is not None:
        pass
    report = await audit(store)
    assert report.ok, report
    records = await store.database["records"].find({}).to_list()
    assert len(records) == count * generations
    return {record["_id"]: Record.from_mongo(record) for record in records}


async def turns_of(store: Store, record: Record) -> list[DispatchedSamplingTask]:
    return (await store.records.dispatches_of([record.id]))[record.id]


async def test_collaborative_rounds(store: Store, engine: Server) -> None:
    async with local(store, engine) as shared:
        records = await play_all(store, "collaborative.jsonl", shared)
    for record in records.values():
        seats = [turn.thread for turn in await turns_of(store, record)]
        if record.tid == "sum-1" and record.termination == "answered":
            assert (seats[:2], seats[3], len(seats)) == (["Planner", "Solver"], "Solver", 4)
        if record.tid == "sum-2" and record.termination == "answered":
            assert seats in (["Planner", "Solver"], ["Planner", "Solver", "Solver"])
        assert set(record.actors) <= {"Planner", "Solver"}


async def test_parallel_drafts(store: Store, engine: Server) -> None:
    async with local(store, engine, max_new_tokens=200) as shared:
        records = await play_all(store, "drafts.jsonl", shared)
    combined = 0
    for record in records.values():
        turns = await turns_of(store, record)
        drafts = [turn for turn in turns if turn.thread is not None and not turn.thread.startswith("Combiner")]
        assert len(drafts) == 3
        assert [turn.while_open for turn in drafts] == [[], [0], [0, 1]], "they are asked at once"
        if len(turns) == 4:
            combined += 1
            heard = turns[3].messages[-1]["content"]
            assert heard.count(" says: ") == 3
    assert combined > 0


async def test_a_frozen_opponent(store: Store, engine: Server) -> None:
    async with local(store, engine) as shared:
        records = await play_all(store, "jailbreak.jsonl", shared)
    for record in records.values():
        turns = await turns_of(store, record)
        assert {turn.policy for turn in turns} <= {"main", "main@frozen"}
        keepers = [turn for turn in turns if turn.thread == "Keeper"]
        if keepers:
            assert "Never say it." in keepers[0].messages[0]["content"]
            assert {turn.policy for turn in keepers} == {"main@frozen"}
            assert record.actors["Attacker"].score == record.score
    trained = {used.id for data in await store.data.find({}) for used in data.dispatches}
    keepers_turns = {t.id for r in records.values() for t in await turns_of(store, r) if t.thread == "Keeper"}
    assert trained
    assert not trained & keepers_turns


def coder(*replies: str) -> Any:
    """An engine whose replies to the coder come in turn; the reviewer (a prompt that asks for a sentence) hears one."""
    left = list(replies)

    async def behavior(request: Any) -> Any:
        from tests.sampler.episodes import TEMPLATE

        asked = TEMPLATE.decode(json.loads(request.content)["input_ids"])
        text = "The sum is wrong." if "what is wrong with the code" in asked else left.pop(0)
        return await says(text)(request)

    return behavior


BAD, GOOD = "```python\ndef add(a, b):\n    return a - b\n```", "Now:\n```python\ndef add(a, b):\n    return a + b\n```"


async def test_code_with_feedback_is_run_by_the_python_tool_until_its_tests_pass(
    store: Store, python_tool: Gateway, tmp_path: Path
) -> None:
    line = (EXAMPLES / "code.jsonl").read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "code.jsonl").write_text(f"{line}\n", encoding="utf-8")
    await import_task_file(store, tmp_path / "code.jsonl", ImportTarget("train", num_generations=1))
    url = f"{python_tool.url}/mcp"
    async with resources(store, coder("No idea.", BAD, GOOD), **{**SETTINGS, "mcp_manager_url": url}) as shared:
        got = await claim(store)
        sampler = SamplerKinds.of(shared.config).of_task("code")(shared, got)
        score = await play(sampler)
    record = await store.records.get(got.record_id)
    assert record is not None
    assert score == 1.0, record.error
    turns = await turns_of(store, record)
    assert [turn.thread for turn in turns] == ["Coder", "Reviewer", "Coder", "Reviewer", "Coder"]
    assert [len(turn.tool_calls) for turn in turns] == [0, 0, 2, 0, 2]
    assert "AssertionError: -1" in turns[2].tool_calls[1].result
    assert "AssertionError: -1" in turns[4].messages[-1]["content"]
    assert "Reviewer says: The sum is wrong." in turns[4].messages[-1]["content"]
    assert {turn.policy for turn in turns if turn.thread == "Reviewer"} == {"main@frozen"}
    assert record.metrics["versions"] == 3


async def test_the_code_example_plays_with_the_local_engine(store: Store, engine: Server, python_tool: Gateway) -> None:
    async with local(store, engine, mcp_manager_url=f"{python_tool.url}/mcp") as shared:
        records = await play_all(store, "code.jsonl", shared)
    assert {record.score for record in records.values()} <= {0.0, 1.0}
