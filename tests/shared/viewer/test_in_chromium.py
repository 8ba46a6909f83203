"""Pages in a real browser: curves are drawn and lead on, nothing hostile runs, keyboards reach, and axe finds nothing.

Needs Chromium (`apt-get install chromium`) and, for axe, `npm install --prefix .axe axe-core@4`; skipped without, with
the reason.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scripts.chromium import PageOfChromium, browser, chromium_path
from shared.documents.run import Worker
from shared.processes.mongod import Mongod
from shared.processes.quiet_server import QuietServer
from shared.store import Store
from shared.store.connecting import connect
from shared.viewer.app import RUN_PAGES, make_app
from tests.shared.cli.commands import RECORD
from tests.shared.viewer.test_dashboard import HOSTILE

AXE = Path(__file__).parents[3] / ".axe" / "node_modules" / "axe-core" / "axe.min.js"
AXE_RUN = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations.map(one =>
    one.id + ": " + one.help + " " + one.nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(" | ")))"""
IDS = {"record_id": RECORD, "gid": "main:train:0:t0", "policy": "main", "step": "1"}
pytestmark = [
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@asynccontextmanager
async def shown(mongod: Mongod) -> AsyncIterator[tuple[PageOfChromium, str]]:
    """A tab, and the address of a viewer."""
    client = connect(mongod.connection_string, 10.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = QuietServer(make_app(client), log_level="warning")
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with browser() as page:
                yield page, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
            await client.close()


def paths(run: str) -> list[str]:
    """Of every page."""
    found = ["/", f"/compare?a={run}&b={run}"]
    for page in RUN_PAGES:
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda part: IDS.get(part[1], part[0]), page.path)
        found += [f"/runs/{run}{path}"] if page.template and "{" not in path else []
    return found


async def test_a_click_on_the_reward_curve_opens_that_step(mongod: Mongod, played: str) -> None:
    async with shown(mongod) as (page, url):
        await page.open(f"{url}/runs/{played}")
        await page.until("document.getElementById('charts').dataset.drawn")
        assert await page.run("document.querySelectorAll('.chart canvas').length") >= 1
        assert page.problems == [], "no script failed, and the policy of content refused nothing"
        place = await page.run(
            "(r => [r.x + r.width / 2, r.y + r.height / 2])"
            "(document.querySelector('[data-chart=reward] .u-over').getBoundingClientRect())"
        )
        await page.click(*place)
        await page.until(f"location.pathname === '/runs/{played}/steps/main/1'")


async def test_hostile_texts_neither_run_nor_load_anything(mongod: Mongod, store: Store) -> None:
    await store.workers.heartbeat(
        Worker(id=HOSTILE, kind="sampler", host="h", pid=1, doing=HOSTILE, alarms=[HOSTILE * 50_000], heartbeat_s=3600)
    )
    async with shown(mongod) as (page, url):
        for path in ("/", f"/runs/{store.run}", f"/runs/{store.run}/timeline"):
            await page.open(url + path)
            assert await page.run("typeof window.taken") == "undefined", path
            assert await page.run("document.querySelectorAll('main img, main script').length") == 0, path
            assert page.problems == [], path


async def test_every_page_can_be_used_by_keyboard_and_with_a_reader(mongod: Mongod, played: str) -> None:
    if not AXE.is_file():
        pytest.skip("no axe-core: npm install --prefix .axe axe-core@4")
    axe = AXE.read_text(encoding="utf-8")
    wrong = []
    async with shown(mongod) as (page, url):
        for dark in (False, True):
            await page.look(dark=dark)
            for path in paths(played):
                await page.open(url + path)
                await page.until(
                    "!document.getElementById('charts') || document.getElementById('charts').dataset.drawn"
                )
                await page.run(axe + "; 1")
                wrong += [f"{path} dark={dark}: {found}" for found in await page.run(AXE_RUN)]
                first = "document.querySelector('a[href], button, input').className"
                assert await page.run(first) == "skip", f"{path}: the first key press leads past the navigation"
    assert wrong == []
