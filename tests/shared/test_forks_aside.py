"""Forks change no figure of a run: what is told of training and of held-out results is the same without and with them."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.documents.fork import ForkOrigin
from shared.documents.states import RecordStatus
from shared.episodes.origin import queue_fork, read_origin
from shared.evaluation.rounds import evaluation_rounds
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.admission import OffPolicyBudget
from shared.store.connecting import connect
from shared.store.data_file import export_data
from tandem.audit.report import Check
from tandem.audit.run import audit
from tandem.commands.run_status import read_status
from tandem.viewer.app import make_app
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import play, whole_run

TRAINED, HELD_OUT = "main:train:0:t0:0:1", "main:eval:0:t0:0:1"
MOST = 100
PAGES = (
    *("", "/curves", "/tasks", "/tasks?split=eval", "/steps", "/steps/main/1", "/ledger", "/search", "/tools"),
    *(
        "/tools?split=eval",
        "/search?source=test",
        "/versions?a=0&b=1",
        "/groups/main:train:0:t0",
        "/groups/main:eval:0:t0",
    ),
)
OF_ALL_DOCUMENTS = {"tasks", "records", "dispatches"}  # in the row of the run: how many the database has


@pytest.fixture
async def run(store: Store) -> Store:
    await whole_run(store, tasks=3)
    await import_tasks(store, 2, num_generations=2, split="eval", at_version=0)
    while (held := await claim(store, split="eval", served_versions=[0])) is not None:
        await play(store, held, float(held.traj_id))
    while await settle_next(store, "w", make_config({})) is not None:
        continue
    await import_tasks(store, 1, num_generations=4, tid="open")
    return store


async def forked(store: Store) -> None:
    """Of a trained and of a held-out episode: played, with scores that no other episode has, failed, and not played."""
    for number, record in enumerate((TRAINED, HELD_OUT)):
        for turn in range(2):
            origin = await read_origin(store, f"{record}:{turn}")
            wanted = ForkOrigin(
                dispatch=f"{record}:{turn}", sampling_params={"temperature": 1.0}, earlier_calls="stateless"
            )
            await queue_fork(store, origin, wanted, 3, again=False)
        for _ in range(2):
            await play(store, await claim(store, split="fork"), 7.5)
        lost = await claim(store, split="fork")
        await store.records.start(lost, "w")
        await store.records.move(lost.record_id, RecordStatus.FAILED, {"termination": "misconfigured", "error": "gone"})
        await store.tasks.retry_slot(lost, "gone", delay_s=0, max_failures=1 + number)
    while await settle_next(store, "w", make_config({})) is not None:
        continue


Ask = Callable[[Store], Awaitable[Any]]


async def exported(store: Store, file: Path) -> tuple[int, bytes]:
    groups = await export_data(store, file, "main")
    return groups, gzip.decompress(await asyncio.to_thread(file.read_bytes))


async def told(store: Store) -> dict[str, Any]:
    """What `tandem status` tells of the splits that the run has without forks."""
    found = asdict(await read_status(store))
    for policy in found["policies"]:
        del policy["announced"]  # how long ago
    kept = ("state", "reason", "abandoned", "record_data", "set_aside", "policies", "malformed")
    by_split = {name: {split: found[name].get(split) for split in ("train", "eval")} for name in ("tasks", "slots")}
    return {name: found[name] for name in kept} | by_split | {"metrics": found["metrics"].get("train")}


QUESTIONS: dict[str, Ask] = {
    "tandem status": told,
    "tandem eval": lambda store: evaluation_rounds(store, "main"),
    "admission": lambda store: store.admission.seq_limit("main", {"main": OffPolicyBudget(1, MOST)}),
    "first unended task": lambda store: store.tasks.first_unended("train"),
    "held-out versions": lambda store: store.evaluation.awaited_version("main", before=9),
    "ready groups": lambda store: store.data.ready_groups("main", MOST),
    "groups that resettle takes": lambda store: store.resettling.played("main"),
    "whether tasks are left": lambda store: store.questions.has_unended_tasks(),
    "failures": lambda store: store.tasks.count_failures(),
    "metrics of the sampler": lambda store: store.questions.own_metrics("train"),
    "tandem league": lambda store: store.questions.seated_records("train", MOST),
}


@pytest.mark.parametrize("name", QUESTIONS)
async def test_an_answer_about_the_run_is_the_same_with_forks(run: Store, name: str) -> None:
    before = await QUESTIONS[name](run)
    await forked(run)
    assert await QUESTIONS[name](run) == before


async def test_what_is_exported_for_training_is_the_same_with_forks(run: Store, tmp_path: Path) -> None:
    before = await exported(run, tmp_path / "before.gz")
    await forked(run)
    assert await exported(run, tmp_path / "after.gz") == before


async def test_the_audit_of_training_and_evaluation_passes_with_forks(run: Store) -> None:
    before = {check: result.violations for check, result in (await audit(run, running=True)).results.items()}
    await forked(run)
    after = {check: result.violations for check, result in (await audit(run, running=True)).results.items()}
    assert {check for check in after if after[check] > before.get(check, 0)} <= {Check.FORKED}, (
        "their prompts are made up"
    )


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_about_the_run_is_the_same_with_forks(mongod: Mongod, run: Store, page: str) -> None:
    database = connect(mongod.connection_string, 10.0)
    transport = httpx.ASGITransport(app=make_app(database, None))
    bare, _, query = page.partition("?")
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8800") as viewer:
            path = f"/runs/{run.run}{bare}.json?{query}"
            before = await viewer.get(path)
            await forked(run)
            after = await viewer.get(path)
    finally:
        await database.close()
    assert before.status_code == 200, before.text
    assert figures_of(after) == figures_of(before)


def figures_of(answer: httpx.Response) -> Any:
    found = answer.json()
    for name in OF_ALL_DOCUMENTS & found.get("row", {}).keys():
        del found["row"][name]
    return found
