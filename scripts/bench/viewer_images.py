"""How the viewer opens an episode that saw a screenshot in every turn: in Chromium, over the documents of a played episode.

    python -m scripts.bench.viewer_images [--screenshots 50] [--repeats 5] [--pictures docs/img] [--json F] [--quick]

`by need`: as the page is, at its first turn, until the pictures in the window are drawn. `at once`: the same page, of which every
picture is requested. Both by turns, with an empty cache. `MB`: of pictures. `viewer CPU`: of this process, which serves.
`browser CPU`: of Chromium's processes.

`--pictures`: writes docs/img/viewer-images.png and viewer-image_tokens.png; the screenshots are then pictures of docs/img.
"""

import asyncio
import io
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import psutil
from PIL import Image

from sampler.core.rendering.template import ChatTemplate
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.image_episodes import InstantEngine, played, screenshot, vision_model
from scripts.bench.processes import ROOT, cpu_s
from scripts.chromium import PageOfChromium, browser
from scripts.viewer_pictures import served_viewer
from shared.processes.mongod import Mongod
from shared.store import Store

SIZE = (1024, 768)  # of a screenshot
HIGHEST_PICTURE = 2100  # pixels
PICTURES = "[...document.querySelectorAll('main img')]"
IN_WINDOW = f"{PICTURES}.filter(one => (r => r.top < innerHeight && r.bottom > 0)(one.getBoundingClientRect()))"
DRAWN = "(some => some.length > 0 && some.every(one => one.complete && one.naturalWidth))"
LOADED = """(entries => [performance.now(), entries.length, entries.reduce((sum, one) => sum + one.encodedBodySize, 0)])(
    performance.getEntriesByType("resource").filter(one => one.name.includes("/images/")))"""
EAGER = f"{PICTURES}.forEach(one => {{ one.loading = 'eager' }})"
WAYS = {"by need": ("1", f"{DRAWN}({IN_WINDOW})"), "at once": (EAGER, f"{DRAWN}({PICTURES})")}


async def measure(options: Options) -> Tables:
    template = ChatTemplate.from_dir(vision_model(options.folder / "model"))
    with Mongod(options.folder / "mongodb") as mongod:
        async with Store.open(mongod.connection_string, "bench") as store:
            sampler = await played(store, template, InstantEngine(template, SIZE[1], SIZE[0]), _pages(options))
            record = sampler.claim.record_id
            async with served_viewer(store) as url, browser() as page:
                address = f"{url}/runs/bench/rollouts/{record}"
                if options.pictures is not None:
                    await _take(page, address, options.pictures)
                runs: dict[str, list[Row]] = {name: [] for name in WAYS}
                for _ in range(options.repeats):
                    for name in WAYS:
                        runs[name].append(await _opened(page, address, name))
    return {"an episode": [_median(name, rows, options.screenshots) for name, rows in runs.items()]}


def _pages(options: Options) -> list[bytes]:
    if options.pictures is None:
        return [screenshot(number, *SIZE) for number in range(options.screenshots)]
    files = sorted((ROOT / "docs" / "img").glob("viewer-*.png"))
    return [_cropped(path) for path in files if "image" not in path.name][: options.screenshots]


def _cropped(path: Path) -> bytes:
    with Image.open(path) as picture:
        width = picture.width
        page = picture.convert("RGB").crop((0, 0, width, width * SIZE[1] // SIZE[0])).resize(SIZE)
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


async def _opened(page: PageOfChromium, address: str, way: str) -> Row:
    before, until = WAYS[way]
    await page.open("about:blank")
    await page.ask("Network.setCacheDisabled", cacheDisabled=True)
    used = cpu_s(os.getpid()), _browser_cpu_s()
    await page.open(f"{address}#turn-0")
    await page.run(before)
    await page.until(until)
    now_ms, number, num_bytes = await page.run(LOADED)
    page_bytes = await page.run("performance.getEntriesByType('navigation')[0].encodedBodySize")
    return {
        "pictures": number,
        "MB": num_bytes / 1e6,
        "page kB": page_bytes / 1e3,
        "ms": now_ms,
        "viewer CPU ms": 1000 * (cpu_s(os.getpid()) - used[0]),
        "browser CPU ms": 1000 * (_browser_cpu_s() - used[1]),
    }


def _browser_cpu_s() -> float:
    """Of the children of this process that are Chromium's."""
    children = psutil.Process().children(recursive=True)
    return sum(cpu_s(child.pid) for child in children if "chrom" in child.name())


def _median(way: str, rows: Sequence[Row], screenshots: int) -> Row:
    return {
        "loaded": way,
        "screenshots": screenshots,
        **{name: statistics.median(row[name] for row in rows) for name in rows[0]},
    }


async def _take(page: PageOfChromium, address: str, folder: Path) -> None:
    for name, path in {"images": "", "image_tokens": "/tokens?turn=1&token=40"}.items():
        await page.set_view(height=HIGHEST_PICTURE)
        await page.open(address + path)
        await page.run(EAGER)
        await page.until(f"{DRAWN}({PICTURES})")
        await page.run(f"Promise.all({PICTURES}.map(one => one.decode())).then(() => 1)")
        picture = await page.picture(HIGHEST_PICTURE)
        await asyncio.to_thread((folder / f"viewer-{name}.png").write_bytes, picture)
    await page.set_view()


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--screenshots", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pictures", type=Path, help="folder for the pictures of the documentation")
    run_benchmark(parser, measure, screenshots=6, repeats=1)
