"""What the pages of a run read does not grow with the run: on 1,600 groups, each page asked for something in its middle."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.large_run import GROUPS_PER_STEP, make
from tests.tandem.viewer.page_paths import page_paths, with_ids

RUN = "big"
GROUPS = 1_600
NEWEST_EPISODES = 1_000  # whose turns the page of tools sums up: twice those
PATHS = page_paths(RUN)


@pytest.fixture(scope="module")
def large(mongod: Mongod) -> Iterator[str]:
    async def made() -> None:
        async with Store.open(mongod.connection_string, RUN) as store:
            await make(store, GROUPS)
            await store.ensure_indexes()

    asyncio.run(made())
    yield RUN
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(RUN)


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_of_a_large_run_reads_what_it_shows(mongod: Mongod, viewer: Client, large: str, path: str) -> None:
    asked = with_ids(path, GROUPS, random.Random(1))
    with pymongo.MongoClient[dict[str, Any]](mongod.connection_string) as client:
        client[RUN].command("profile", 2)
        answer = await viewer.get(asked)
        client[RUN].command("profile", 0)
        read = list(client[RUN]["system.profile"].find({"docsExamined": {"$gt": 0}}))
        client[RUN].drop_collection("system.profile")
    assert answer.status_code == 200, answer.text
    sums = [one for one in read if one["command"].get("aggregate")]  # of many documents, one figure
    shown = [one for one in read if one not in sums]
    assert sum(one["docsExamined"] for one in sums) <= 2 * 5 * NEWEST_EPISODES // 2
    wasted = [
        (one["ns"], one["command"], one["docsExamined"]) for one in shown if one["docsExamined"] > one["nreturned"] + 4
    ]
    assert wasted == []


@pytest.mark.parametrize("step", [1, 50, GROUPS // GROUPS_PER_STEP])
async def test_a_step_names_the_first_weights_that_hold_it(viewer: Client, large: str, step: int) -> None:
    found = (await viewer.get(f"/runs/{RUN}/steps/main/{step}.json")).json()
    assert found["first_version"]["version"] == step


async def test_a_window_in_the_middle_has_its_steps_and_versions(viewer: Client, large: str) -> None:
    asked = with_ids(f"/runs/{RUN}/timeline.json?end={{time}}&seconds=300", GROUPS, random.Random(1))
    found = (await viewer.get(asked)).json()
    assert [len(lane["bars"]) for lane in found["lanes"] if lane["name"] == "trainer main"] == [2 * 5]
    assert len(found["announced"]) in (4, 5)


async def test_tables_of_figures_have_some_steps_and_the_last(viewer: Client, large: str) -> None:
    html = (await viewer.get(f"/runs/{RUN}")).text
    rows = html.partition("Figures: Entropy")[2].partition("</table>")[0]
    assert 30 <= rows.count('<th scope="row"') <= 60
    assert '<th scope="row" class="n">100</th>' in rows
    assert "One of 2 of the drawn steps" in html
