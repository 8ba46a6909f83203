"""Pages in a real browser: curves are drawn and lead on, nothing hostile runs, keyboards reach, and axe finds nothing.

Needs Chromium and axe-core, which scripts/setup_browser.sh installs; skipped without, with the reason.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scripts.chromium import PageOfChromium, browser, chromium_path
from shared.documents.notes import Note
from shared.documents.run import Admission, TrainedStep, Worker
from shared.http.server import HttpServer
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.connecting import connect
from tandem.viewer.app import RUN_PAGES, make_app
from tests.tandem.commands.commands import RECORD
from tests.tandem.viewer.incomplete import RUNS
from tests.tandem.viewer.stories import Call, Told, tell
from tests.tandem.viewer.test_dashboard import HOSTILE, add_steps

AXE = Path(__file__).parents[3] / ".axe" / "node_modules" / "axe-core" / "axe.min.js"
WCAG = '["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]'
AXE_RUN = (
    f"""axe.run(document, {{resultTypes: ["violations"], runOnly: {WCAG}, rules: {{"target-size": {{enabled: true}}}}}})"""
    """.then(found => found.violations.map(one =>
    one.id + ": " + one.help + " " + one.nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(" | ")))"""
)
WIDER = """document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll, pre, .u-wrap"))
    .map(one => one.outerHTML.slice(0, 150)).concat(document.documentElement.scrollWidth + " px")"""
WIDTHS = (320, 400, 1280)
BEYOND = """[...document.querySelectorAll(".card table")].filter(table => !table.closest(".scroll") &&
    table.getBoundingClientRect().right > table.closest(".card").getBoundingClientRect().right)
    .map(table => table.innerText.slice(0, 80))"""
UNEVEN = [
    "only its document",
    "no step",
    "crashed",
    "without indexes",
    "without trained_steps",
    "without policy_versions",
]
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
        server = HttpServer(make_app(client), log_level="warning")
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


async def test_from_the_reward_curve_a_click_leads_to_the_step_the_token_its_call_and_the_query_and_back(
    mongod: Mongod, store: Store
) -> None:
    """Every step is a mouse click on what is seen there, and Compass' query finds the call that was reached."""
    call = Call(name="calculator", arguments={"e": "6*7"}, result="42")
    told = Told(score=1.0, replies=(("I add", (call,)), ("42", ())))
    await tell(store, lambda seq, slot: told if slot else Told(), groups=1, steps=1)
    await store.steps.note_metrics("main:1:1", {"reward/mean": 0.75, "reward/std": 0.1})
    run, record = f"/runs/{store.run}", "main:train:0:t0:1:1"
    way = [
        (f"{run}/steps/main/1", "[data-chart=reward] .u-over"),
        (f"{run}/groups/main:train:0:t0", "a[href$='/groups/main:train:0:t0']"),
        (f"{run}/rollouts/{record}", f"th a[href$='/rollouts/{record}']"),
        (f"{run}/rollouts/{record}/tokens", "#turn-0 h3 a"),
        (f"{run}/rollouts/{record}/tokens#chosen", "#strip .tok:not(.context)"),
        (f"{run}/rollouts/{record}#turn-0-call-0", "#chosen a[href$='#turn-0-call-0']"),
    ]
    async with shown(mongod) as (page, url):
        await page.open(url + run)
        await page.until("document.getElementById('charts').dataset.drawn")
        for place, seen in way:
            await click(page, seen)
            await page.until(
                f"location.pathname + location.hash === {json.dumps(place)} && document.readyState === 'complete'"
            )
        assert "42" in await page.run("document.querySelector('#turn-0-call-0').innerText")
        await click(page, "#turn-0 details:last-of-type summary")
        asked = await page.until(
            "document.querySelector('#turn-0 details:last-of-type pre.copy').checkVisibility() && "
            "document.querySelector('#turn-0 details:last-of-type pre.copy').innerText"
        )
        found = await store.database["dispatched_sampling_tasks"].find(json.loads(asked)).to_list()
        assert [one["tool_calls"][0]["result"] for one in found] == ["42"]
        for place in [*[place for place, _ in way[-2::-1]], run]:
            await page.run("history.back()")
            await page.until(f"location.pathname + location.hash === {json.dumps(place)}")
        assert page.problems == []


@pytest.mark.parametrize("made", UNEVEN)
async def test_the_dashboard_of_an_incomplete_run_is_drawn_without_a_script_error(
    mongod: Mongod, store: Store, made: str
) -> None:
    await RUNS[made](store)
    async with shown(mongod) as (page, url):
        await page.open(f"{url}/runs/{store.run}")
        await page.until("!document.getElementById('charts') || document.getElementById('charts').dataset.drawn")
        assert page.problems == []


async def click(page: PageOfChromium, seen: str) -> None:
    """On the middle of the first element of a CSS selector, which is scrolled into view and is what the mouse meets."""
    name = json.dumps(seen)
    await page.until(f"!!document.querySelector({name})")
    place = await page.run(
        f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getClientRects()[0];"
        f" const at = [r.x + r.width / 2, r.y + r.height / 2], met = document.elementFromPoint(...at);"
        f" return e.contains(met) ? at : 'covered by ' + met.outerHTML.slice(0, 200) }})(document.querySelector({name}))"
    )
    assert isinstance(place, list), (seen, place)
    await page.click(*place)


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


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (WIDTHS[0], False),
        (WIDTHS[-1], True),
        *(pytest.param(width, False, marks=pytest.mark.thorough) for width in WIDTHS[1:]),
    ],
)
async def test_every_page_can_be_used_by_keyboard_and_with_a_reader(
    mongod: Mongod, played: str, width: int, *, dark: bool
) -> None:
    if not AXE.is_file():
        pytest.skip("no axe-core: scripts/setup_browser.sh")
    axe = AXE.read_text(encoding="utf-8")
    wrong = []
    async with shown(mongod) as (page, url):
        await page.set_view(dark=dark, width=width)
        for path in paths(played):
            await page.open(url + path)
            await page.until("!document.getElementById('charts') || document.getElementById('charts').dataset.drawn")
            await page.run(axe + "; 1")
            wrong += [f"{path}: a table leaves its card: {text}" for text in await page.run(BEYOND)]
            wrong += [f"{path} is wider: {text}" for text in await page.run(WIDER)]
            wrong += [f"{path}: {found}" for found in await page.run(AXE_RUN)]
            first = "document.querySelector('a[href], button, input').className"
            assert await page.run(first) == "skip", f"{path}: the first key press leads past the navigation"
    assert not wrong, "\n".join(wrong)


async def dashboard_of(page: PageOfChromium, url: str, run: str) -> None:
    await page.open(f"{url}/runs/{run}")
    await page.until("document.getElementById('charts').dataset.drawn")


async def test_an_open_dashboard_shows_what_is_new_without_a_reload(mongod: Mongod, store: Store) -> None:
    """The first step, with its chart and table; a process, its alarm and an engine. What is being typed stays."""
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1))
    async with shown(mongod) as (page, url):
        await dashboard_of(page, url, store.run)
        await page.run("window.opened = 1")
        await store.workers.heartbeat(
            Worker(id="w1", kind="sampler", host="h", pid=1, doing="plays 7", alarms=["no answer"], heartbeat_s=3600)
        )
        for text in ("plays 7", "no answer"):
            await page.until(f"document.querySelector('main').innerText.includes({json.dumps(text)})")
        await add_steps(store, [1, 2])
        await page.until("!!document.querySelector('[data-chart=reward] canvas')")
        assert not await page.run("document.querySelector('main').innerText.includes('No step was trained yet')")
        await add_steps(store, [3], reward=0.8125)
        await page.until("document.querySelector('[data-region=figures-reward] tbody').textContent.includes('0.8125')")
        assert await page.run("window.opened") == 1, "the page was not loaded again"
        assert page.problems == []


async def test_a_note_that_is_being_written_survives_the_news(mongod: Mongod, store: Store) -> None:
    await tell(store, lambda seq, slot: Told(), groups=1, slots=2)
    record = "main:train:0:t0:0:1"
    async with shown(mongod) as (page, url):
        await page.open(f"{url}/runs/{store.run}/rollouts/{record}")
        await page.run(
            "document.getElementById('note-text').value = 'half a sen'; document.getElementById('content').dataset.poll = '1'"
        )
        await page.run("document.dispatchEvent(new Event('visibilitychange'))")
        await store.notes.add(Note(id="other", record=record, text="of somebody else"))
        await page.run("document.dispatchEvent(new Event('visibilitychange'))")
        await page.until("Number(document.getElementById('content').dataset.shown) >= 1")
        assert await page.run("document.getElementById('note-text').value") == "half a sen"
        await page.run(
            "document.getElementById('note-text').value = ''; document.dispatchEvent(new Event('visibilitychange'))"
        )
        await page.until("document.getElementById('notes').innerText.includes('of somebody else')")


async def test_a_viewer_that_is_gone_is_said_on_the_page(mongod: Mongod, store: Store) -> None:
    async with shown(mongod) as (page, url):
        await dashboard_of(page, url, store.run)
        await page.run("window.fetch = () => Promise.reject(new Error('gone')); 1")
        await page.run("document.dispatchEvent(new Event('visibilitychange'))")
        await page.until("document.getElementById('stale').checkVisibility()")
        assert "does not answer" in await page.run("document.getElementById('stale').innerText")


async def test_curves_are_read_and_opened_by_keyboard(mongod: Mongod, store: Store) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1))
    await add_steps(store, [1, 2, 3])
    plot = "document.querySelector('[data-chart=reward] .u-over')"
    async with shown(mongod) as (page, url):
        await dashboard_of(page, url, store.run)
        await page.run(f"{plot}.focus()")
        for key, step in (("Home", 1), ("ArrowRight", 2), ("ArrowRight", 3), ("ArrowRight", 3), ("ArrowLeft", 2)):
            await page.press(key)
            assert (await page.run(f"{plot}.getAttribute('aria-valuetext')")).startswith(f"step {step}: all 0.5"), key
        await page.run("document.querySelector('[data-chart=reward] .u-label[role=button]').focus()")
        await page.press("Enter")
        pressed = "document.querySelector('[data-chart=reward] .u-label[role=button]').getAttribute('aria-pressed')"
        assert await page.run(pressed) == "false"
        await page.run(f"{plot}.focus()")
        await page.press("Enter")
        for key, place in (("", "/steps/main/2"), ("j", "/steps/main/3"), ("k", "/steps/main/2"), ("u", "/steps")):
            if key:
                await page.press(key)
            await page.until(f"location.pathname === '/runs/{store.run}{place}' && document.readyState === 'complete'")
        assert page.problems == []


async def test_axes_have_whole_steps_shares_reach_from_0_to_1_and_a_lone_point_is_drawn(
    mongod: Mongod, store: Store
) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1))
    for step in (1, 2, 3):
        name = f"main:{step}:1"
        await store.steps.add(
            TrainedStep(id=name, policy="main", step=step, trainer_generation=1, groups=[("t", 8)] * 4)
        )
        rare = {"reward_by_source/rare": 0.25} if step == 3 else {}
        metrics = {"reward/mean": 0.5, "loss/clipped_fraction": 0.01, "reward_by_source/usual": 0.5, **rare}
        await store.steps.note_metrics(name, metrics)
    async with shown(mongod) as (page, url):
        await dashboard_of(page, url, store.run)
        of = "document.querySelector('[data-chart={}]').uplot"
        scale = await page.run(f"[{of.format('clipping')}.scales.y.min, {of.format('clipping')}.scales.y.max]")
        assert scale == [0, 1]
        ticks = await page.run(f"{of.format('reward')}.axes[0]._values")
        assert ticks == ["1", "2", "3"]
        lone = "(u => { const n = u.series.findIndex(s => s.label === 'rare'); return u.series[n].points.filter() })"
        assert await page.run(f"{lone}({of.format('reward')})") == [2]


async def test_smoothing_and_the_clock_are_part_of_the_address(mongod: Mongod, store: Store) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1))
    for step, reward in ((1, 0.0), (2, 1.0), (3, 0.0)):
        await add_steps(store, [step], reward=reward)
    async with shown(mongod) as (page, url):
        await page.open(f"{url}/runs/{store.run}?smooth=0.5&x=clock")
        await page.until("document.getElementById('charts').dataset.drawn")
        plot = "document.querySelector('[data-chart=reward]').uplot"
        smoothed = await page.run(f"(u => u.data[u.series.findIndex(s => s.label === 'all')])({plot})")
        assert smoothed == [pytest.approx(value) for value in (0.0, 0.5 / 0.75, 0.25 / 0.875)], (
            "corrected for its start"
        )
        now = await page.run("Date.now() / 1000")
        assert abs(await page.run(f"{plot}.data[0][2]") - now) < 3600, "seconds since 1970"
        await page.run(
            "document.getElementById('x-axis').value = 'hours';"
            "document.getElementById('x-axis').dispatchEvent(new Event('change'))"
        )
        await page.until("location.search === '?smooth=0.5&x=hours'")
        assert await page.run(f"{plot}.data[0][0]") == 0
