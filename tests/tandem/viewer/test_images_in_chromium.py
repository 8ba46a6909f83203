"""Pictures of episodes in a real browser: seen, loaded by need, opened by a click, and found by readers of screens.

Needs Chromium and axe-core, as `test_in_chromium.py`.
"""

import json

import pytest

from scripts.chromium import PageOfChromium, chromium_path
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.image_files import painted, saved
from tests.tandem.viewer.image_run import FILES, FIRST, GROUP, SECOND, file_of, insert_image_run
from tests.tandem.viewer.test_in_chromium import AXE, AXE_RUN, BEYOND, WIDER, WIDTHS, click, shown

pytestmark = [
    pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
PICTURES = "[...document.querySelectorAll('main img')]"
LOADED = f"{PICTURES}.filter(one => one.complete && one.naturalWidth > 0).length"
SIZES = f"{PICTURES}.map(one => [one.offsetWidth, one.offsetHeight])"
REQUESTED = "performance.getEntriesByType('resource').filter(one => one.name.includes('/images/')).length"
PAGES = (
    f"/rollouts/{FIRST}",
    f"/rollouts/{FIRST}/tokens?turn=0&token=2",
    f"/rollouts/{FIRST}/tokens?turn=2",
    f"/groups/{GROUP}",
    f"/groups/{GROUP}/tree",
    f"/compare?a={FIRST}&b={SECOND}",
    f"/search?image={FILES['GIF'].sha256}",
)


async def test_every_format_is_seen_on_every_page_and_no_policy_refuses_it(mongod: Mongod, store: Store) -> None:
    await insert_image_run(store)
    async with shown(mongod) as (page, url):
        await page.set_view(height=4000)
        for path in PAGES:
            await page.open(f"{url}/runs/{store.run}{path}")
            await _all_loaded(page)
            assert page.problems == [], path


async def _all_loaded(page: PageOfChromium) -> None:
    """Each picture that the page has, after it was scrolled to."""
    await page.run(f"{PICTURES}.forEach(one => one.scrollIntoView()); scrollTo(0, 0)")
    await page.until(f"{LOADED} === {PICTURES}.length")


async def test_a_click_on_a_picture_opens_the_file_and_back_leads_to_the_episode(mongod: Mongod, store: Store) -> None:
    """A file of 16 million pixels: on the page it is a thumbnail of 240 x 240."""
    large = file_of("PNG", saved(painted("RGB").resize((4000, 4000)), "PNG"), 4000, 4000)
    await insert_image_run(store, screenshots=[large])
    name, file = f"a[href$='{large.sha256}']", f"/runs/{store.run}/images/{large.sha256}"
    async with shown(mongod) as (page, url):
        await page.open(f"{url}/runs/{store.run}/rollouts/{FIRST}")
        await page.run(f"document.querySelector({json.dumps(name)}).scrollIntoView()")
        picture = f"document.querySelector({json.dumps(name + ' img')})"
        await page.until(f"{picture}.naturalWidth === 4000")
        assert await page.run(f"[{picture}.offsetWidth, {picture}.offsetHeight]") == [240, 240]
        assert page.problems == []
        await click(page, name)
        await page.until(f"location.pathname === {json.dumps(file)} && document.images[0].naturalWidth === 4000")
        assert await page.run("document.contentType") == "image/png"
        await page.run("history.back()")
        await page.until(f"location.pathname.endsWith({json.dumps(FIRST)})")
        styled = "Applying inline style violates"  # Chromium's own, of a picture that stands alone: the policy is that of pages
        assert [problem for problem in page.problems if not problem.startswith(styled)] == []


async def test_of_many_screenshots_those_near_the_window_are_loaded(mongod: Mongod, store: Store) -> None:
    shots = [file_of("PNG", saved(painted("RGB", 1280, 720), "PNG") + bytes([at]), 1280, 720) for at in range(50)]
    await insert_image_run(store, screenshots=shots)
    async with shown(mongod) as (page, url):
        await page.open(f"{url}/runs/{store.run}/rollouts/{FIRST}")
        await page.until(f"{LOADED} >= 1")
        places = await page.run(SIZES)
        assert await page.run(REQUESTED) < 25, "the others are loaded when they come near"
        await page.run(f"{PICTURES}.at(-1).scrollIntoView()")
        await page.until(f"{PICTURES}.at(-1).naturalWidth === 1280")
        assert await page.run(SIZES) == places, "their places were free: nothing moves"
        assert page.problems == []


@pytest.mark.parametrize(("width", "dark"), [(WIDTHS[0], False), (WIDTHS[-1], True)])
async def test_pages_with_pictures_can_be_used_by_keyboard_and_with_a_reader(
    mongod: Mongod, store: Store, width: int, *, dark: bool
) -> None:
    if not AXE.is_file():
        pytest.skip("no axe-core: scripts/setup_browser.sh")
    axe = AXE.read_text(encoding="utf-8")
    tiny, wide = file_of("PNG", saved(painted("RGB", 3, 3), "PNG"), 3, 3), file_of("PNG", None, 37, 23)
    long = file_of("PNG", saved(painted("RGB", 2000, 4), "PNG"), 2000, 4)
    await insert_image_run(store, screenshots=[tiny, wide, long])
    await store.database["images"].delete_one({"_id": FILES["BMP"].sha256})
    wrong = []
    async with shown(mongod) as (page, url):
        await page.set_view(dark=dark, width=width)
        for path in PAGES:
            await page.open(f"{url}/runs/{store.run}{path}")
            await page.run(axe + "; 1")
            wrong += [f"{path}: a table leaves its card: {text}" for text in await page.run(BEYOND)]
            wrong += [f"{path} is wider: {text}" for text in await page.run(WIDER)]
            wrong += [f"{path}: {text}" for text in await page.run(AXE_RUN)]
            assert await page.run(f"{PICTURES}.every(one => one.alt && one.closest('a'))"), path
    assert not wrong, "\n".join(wrong)
