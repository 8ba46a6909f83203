"""Every page of the viewer as a path with names of ids in braces, and ids of the run that `large_run` makes."""

import random
import re
from datetime import timedelta

from shared.store.pipelines import EPOCH
from tandem.viewer.app import RUN_PAGES
from tests.tandem.viewer.large_run import EPISODE_S, GROUPS_PER_STEP, RECORDS, ROUNDS

# The query of pages that show nothing without it, or the end of the run alone.
QUERIES = {
    "/rollouts/{record_id:path}/tokens": "?by=difference",
    "/timeline": "?end={time}&seconds=30",
    "/ledger": "?before={seq}",
    "/tasks": "?before={seq}",
    "/compare": "?a={record_id}&b={another}",
    "/versions": "?a={round}&b={later}",
}


def page_paths(run: str) -> list[str]:
    pages = [page.path for page in RUN_PAGES if page.template or page.path == "/curves"]
    return [f"/runs/{run}{path}{QUERIES.get(path, '')}" for path in pages]


def with_ids(path: str, groups: int, draw: random.Random) -> str:
    """`path` with ids of a run of so many groups in the place of their names."""
    group = draw.randrange(groups)
    rounds = [n * max(1, groups // GROUPS_PER_STEP // ROUNDS) for n in range(ROUNDS)]
    at = EPOCH + timedelta(seconds=group * RECORDS + EPISODE_S)
    task = f"main:train:0:t{group}"
    ids = {
        "gid": task,
        "task": task,
        "record_id": f"{task}:{draw.randrange(RECORDS)}:1",
        "policy": "main",
        "step": str(min(group, groups - groups % GROUPS_PER_STEP - 1) // GROUPS_PER_STEP + 1),
        "another": f"{task}:{draw.randrange(RECORDS)}:1",
        "seq": str(group + 1),
        "time": at.isoformat(),
        "round": str(draw.choice(rounds)),
        "later": str(draw.choice(rounds)),
    }
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda part: ids[part[1]], path)
