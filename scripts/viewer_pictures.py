"""The pictures of docs/look/viewer.md, of a run's real data: every page in Chromium.

    tandem mongod --folder output/demo/mongodb &       # of the demo: scripts/minirl_example.sh demo
    python -m scripts.viewer_pictures demo mongodb://127.0.0.1:PORT docs/img

A page of one group or episode shows one in which episodes of a group differ: there is most to see.
"""

import argparse
import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from scripts.chromium import PageOfChromium, browser
from shared.http.server import HttpServer
from shared.names import TRAIN_SPLIT
from shared.store import Store
from tandem.viewer.app import RUN_PAGES, make_app
from tandem.viewer.page_request import in_url
from tandem.viewer.rendering import query

HIGHEST = 1500  # pixels
ALSO_DARK = ("dashboard",)
DRAWN = "!document.getElementById('charts') || document.getElementById('charts').dataset.drawn"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("db_connection_string")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compare_with", help="another run of the server; default: the run itself")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, picture in asyncio.run(pictures(options.run, options.db_connection_string, options.compare_with)).items():
        path = options.folder / f"viewer-{name}.png"
        path.write_bytes(picture)
        print(f"{path}: {len(picture) / 1024:.0f} KiB")


async def pictures(run: str, connection_string: str, other: str | None) -> dict[str, bytes]:
    """{name: PNG}. Raises RuntimeError if a page has a problem in the browser."""
    async with (
        Store.open(connection_string, run, read_only=True) as store,
        served_viewer(store) as url,
        browser() as page,
    ):
        return await _taken(page, url, await paths(store, run, other))


@asynccontextmanager
async def served_viewer(store: Store) -> AsyncIterator[str]:
    """Its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(make_app(store.client), log_level="warning")
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="viewer")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def paths(store: Store, run: str, other: str | None) -> dict[str, str]:
    """{name: address} of every page."""
    ids = await telling_ids(store)
    compared = {}
    if "record_id" in ids:
        other_record = await store.database["records"].find_one(
            {"task": ids["gid"], "_id": {"$ne": ids["record_id"]}}, sort=[("score", 1)]
        )
        newest = await store.versions.newest(ids["policy"])
        compared["two_rollouts"] = query(a=ids["record_id"], b=other_record["_id"] if other_record else None)
        compared["two_versions"] = query(a=0, b=newest.version if newest else 0)
    by_name = {"runs": "/", "compare": f"/compare?a={in_url(run)}&b={in_url(other or run)}"}
    for page in RUN_PAGES:
        if page.template and all(part in ids for part in re.findall(r"\{(\w+)", page.path)):
            path = re.sub(r"\{(\w+)(:\w+)?\}", lambda part: in_url(ids[part[1]]), page.path)
            name = page.template.removesuffix(".html")
            by_name[name] = f"/runs/{in_url(run)}{path}" + compared.get(name, "")
    token_row = await store.database["trainer_logprobs"].find_one({}, sort=[("largest_difference", -1)])
    if token_row:
        where = query(by="difference", turn=token_row["largest_turn"], position=token_row["largest_place"])
        by_name["tokens"] = f"/runs/{in_url(run)}/rollouts/{in_url(token_row['record'])}/tokens{where}"
    return by_name


async def telling_ids(store: Store) -> dict[str, str]:
    """Of the latest group in which one of several episodes scored otherwise, its longest episode, and the step of it."""
    groups = store.database["tasks"].find({"split": TRAIN_SPLIT, "status": "settled"}).sort([("seq", -1)])
    async for group in groups:
        if len({score for score in group["scores"] if score is not None}) > 1:
            break
    else:
        return {}
    where: dict[str, Any] = {"task": group["_id"], "last_trained_step": {"$ne": None}}
    record = await store.database["records"].find_one(where, sort=[("num_turns", -1)])
    if record is None:
        return {"gid": group["_id"]}
    return {
        "gid": group["_id"],
        "record_id": record["_id"],
        "policy": record["policy"],
        "step": str(record["last_trained_step"]),
    }


async def _taken(page: PageOfChromium, url: str, by_name: dict[str, str]) -> dict[str, bytes]:
    made = {}
    for name, path in by_name.items():
        for dark in (False, True) if name in ALSO_DARK else (False,):
            await page.set_view(dark=dark)
            await page.open(url + path)
            await page.until(DRAWN)
            made[f"{name}-dark" if dark else name] = await page.picture(HIGHEST)
            if page.problems:
                raise RuntimeError(f"{path}: {page.problems}")
    return made


if __name__ == "__main__":
    main()
