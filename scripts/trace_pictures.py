"""One episode in Tandem's viewer, MLflow and Arize Phoenix, next to each other: the picture of docs/look/traces.md.

    tandem mongod --folder output/demo/mongodb &       # of the demo: scripts/minirl_example.sh demo
    tandem trace export demo --otlp http://127.0.0.1:5000 --header x-mlflow-experiment-id=0 --step 60
    tandem trace export demo --otlp http://127.0.0.1:6006 --step 60
    python -m scripts.trace_pictures demo mongodb://127.0.0.1:PORT RECORD docs/img/trace_three_viewers.png

Both receivers have one project, the default one.
"""

import argparse
import asyncio
import io
from pathlib import Path

from PIL import Image

from scripts.chromium import PageOfChromium, browser
from scripts.viewer_pictures import served_viewer
from shared.store import Store
from tandem.traces.spans import trace_id
from tandem.viewer.page_request import in_url

WIDTH, HEIGHT, GAP = 780, 1000, 12
MLFLOW_SHARE, PHOENIX_SHARE = 0.7, 0.8  # of the window's width: the trace's panel, on the left and on the right
SHOWN = "document.body.innerText.includes('execute_tool')"
SETTLED_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("db_connection_string")
    parser.add_argument("record", help="an episode with a tool call")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--mlflow", default="http://127.0.0.1:5000")
    parser.add_argument("--phoenix", default="http://127.0.0.1:6006")
    options = parser.parse_args()
    parts = asyncio.run(parts_of(options))
    whole = Image.new("RGB", (len(parts) * (WIDTH + GAP) - GAP, HEIGHT), "white")
    for number, part in enumerate(parts):
        whole.paste(part, (number * (WIDTH + GAP), 0))
    whole.quantize(128).save(options.picture, optimize=True)
    print(f"{options.picture}: {options.picture.stat().st_size / 1024:.0f} KiB")


async def parts_of(options: argparse.Namespace) -> list[Image.Image]:
    trace = trace_id(options.run, options.record).hex()
    mlflow = f"{options.mlflow}/#/experiments/0/traces?selectedEvaluationId=tr-{trace}"
    phoenix = f"{options.phoenix}/projects/UHJvamVjdDox/traces/{trace}"  # the default project's id
    async with browser() as page:
        own = await _own(page, options)
        left = await _taken(page, mlflow, round(WIDTH / MLFLOW_SHARE))
        right = await _taken(page, phoenix, round(WIDTH / PHOENIX_SHARE))
    return [own, left.crop((0, 0, WIDTH, HEIGHT)), right.crop((right.width - WIDTH, 0, right.width, HEIGHT))]


async def _own(page: PageOfChromium, options: argparse.Namespace) -> Image.Image:
    path = f"/runs/{in_url(options.run)}/rollouts/{in_url(options.record)}"
    opened = Store.open(options.db_connection_string, options.run, read_only=True)
    async with opened as store, served_viewer(store) as url:
        return await _taken(page, url + path, WIDTH, "true")


async def _taken(page: PageOfChromium, url: str, width: int, shown: str = SHOWN) -> Image.Image:
    await page.set_view(width=width, height=HEIGHT)
    await page.open(url)
    await page.until(shown)
    await asyncio.sleep(SETTLED_S)  # these applications draw on after the names of the spans are there
    picture = Image.open(io.BytesIO(await page.picture(HEIGHT)))
    whole = Image.new("RGB", (width, HEIGHT), "white")
    whole.paste(picture, (0, 0))
    return whole


if __name__ == "__main__":
    main()
