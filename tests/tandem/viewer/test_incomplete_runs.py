"""Every page and its JSON twin on runs of which something is missing: none fails, and each says in words what there is not.

Incomplete runs are ordinary: one that has just begun, one that crashed, a copy of a few collections or without indexes, a run
of which someone deleted documents by hand.
"""

import re

import pytest

from shared.store import Store
from tandem.viewer.app import RUN_PAGES
from tests.shared.episodes import whole_run
from tests.tandem.commands.commands import RECORD
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.incomplete import FORK, GROUP, RUNS, TURN
from tests.tandem.viewer.page_paths import page_paths

IDS = {
    **{
        "gid": GROUP,
        "task": GROUP,
        "record_id": RECORD,
        "another": "main:train:0:t0:1:1",
        "policy": "main",
        "step": "1",
    },
    **{"seq": "1", "time": "2026-01-01T00:00:00", "round": "0", "later": "1", "form": "jsonl"},
}


def every_path(run: str, *, forked: bool) -> list[str]:
    """Of every page and download, and of its twin as JSON."""
    pages = page_paths(run)
    beside = ("/curves", "/images/{sha256}")  # parts of pages, with tests of their own
    pages += [f"/runs/{run}{page.path}" for page in RUN_PAGES if not page.template and page.path not in beside]
    of = [IDS, {**IDS, "gid": FORK, "record_id": f"{FORK}:0:1", "another": f"{FORK}:1:1"}] if forked else [IDS]
    found = ["/", "/runs.json", f"/compare?a={run}&b={run}", f"/compare.json?a={run}&b={run}"]
    for ids in of:
        for page in pages:
            path, mark, question = re.sub(r"\{(\w+)(:\w+)?\}", lambda part, ids=ids: ids[part[1]], page).partition("?")
            found += [path + mark + question, f"{path}.json{mark}{question}"]
    return list(dict.fromkeys(found))


def empty_frames(html: str) -> list[str]:
    """Tables, choices and lists without an entry, with the text before them."""
    return [
        html[max(0, frame.start() - 200) : frame.end()]
        for frame in re.finditer(r"<(tbody|select|ul|dl)\b[^>]*>\s*</\1>", html)
    ]


@pytest.mark.parametrize("made", RUNS)
async def test_every_page_of_an_incomplete_run_answers_without_an_empty_frame(
    store: Store, viewer: Client, made: str
) -> None:
    await RUNS[made](store)
    wrong = []
    for path in every_path(store.run, forked=made.startswith("forked")):
        answer = await viewer.get(path)
        if answer.status_code not in (200, 404, 400) or (made == "whole" and answer.status_code != 200):
            wrong.append((path, answer.status_code, answer.text[-400:]))
        if "html" in answer.headers["content-type"]:
            wrong += [(path, frame) for frame in empty_frames(answer.text)]
            assert not re.search(r">\s*None\b", answer.text), path
        elif answer.status_code != 200 and "json" in answer.headers["content-type"]:
            wrong += [] if answer.json()["error"] else [(path, "no reason")]
    assert wrong == []


@pytest.mark.parametrize("made", ["nothing", "no run document"])
async def test_without_a_run_document_every_page_of_the_run_says_so(store: Store, viewer: Client, made: str) -> None:
    if made == "no run document":
        await whole_run(store)
    await store.database["runs"].delete_many({})
    for path in every_path(store.run, forked=False):
        answer = await viewer.get(path)
        if path.startswith(f"/runs/{store.run}"):
            assert (answer.status_code, "no run document" in answer.text) == (404, True), path
        else:
            assert answer.status_code in (200, 404), path


WORDS = (
    ("only its document", "", "No step was trained yet"),
    ("only its document", "/timeline", "No episode has ended yet"),
    ("only its document", "/ledger", "Nothing is compared: no episode is decided"),
    ("only its document", "/tools", "no episode has ended"),
    ("whole", "/timeline?end=2001-01-01T00:00:00", "no process did anything in this window"),
    ("no step", f"/groups/{GROUP}", "no attempt has begun"),
    ("no step", f"/groups/{GROUP}/tree", "no tokens are stored of this group"),
    ("no step", "/steps", "no step yet"),
    ("crashed", "", "the trainer of policy main failed after step 1: OutOfMemoryError: 80 GB"),
    ("without records", f"/groups/{GROUP}", "no record of an attempt is stored, though the group was opened"),
    ("without records", f"/rollouts/{RECORD}", "has no rollout"),
    ("without the record of its turns", f"/rollouts/{RECORD}/tokens", "has no rollout"),
    ("without the task of its records", f"/rollouts/{RECORD}", f"its task {GROUP} is not stored"),
    ("without the task of its records", f"/groups/{GROUP}", "has no group"),
    ("without a turn of the middle", f"/rollouts/{RECORD}", f"turns that are not stored, 1 of 3: {TURN}"),
    ("without a turn of the middle", f"/groups/{GROUP}", "turns that the attempts name and that are not stored: 1"),
    ("without dispatched_sampling_tasks", f"/rollouts/{RECORD}", "No turn is stored"),
    ("without dispatched_sampling_tasks", f"/rollouts/{RECORD}/tokens", "has no turn"),
    ("without dispatched_sampling_tasks", f"/groups/{GROUP}", "no turn of an attempt is stored"),
    ("without dispatched_sampling_tasks", f"/compare?a={RECORD}&b=main:train:0:t0:1:1", "No token of either is stored"),
    ("without tool_schemas", f"/rollouts/{RECORD}", "the tools that the model received are not stored"),
    ("without the data of its step", "/steps/main/1", "no training data of this step is stored"),
    ("without trained_steps", "/steps/main/1", "no trainer of the surviving history says that it took this step"),
    ("without indexes", "/curves.json", '"charts"'),
    ("forked, without the turn", f"/groups/{FORK}", f"Missing: {TURN}, the turn that this fork goes on from"),
    ("forked, without the turn", f"/rollouts/{RECORD}", "Fork of turn 1"),
)


@pytest.mark.parametrize(("made", "path", "words"), WORDS)
async def test_a_page_says_what_is_missing(store: Store, viewer: Client, made: str, path: str, words: str) -> None:
    await RUNS[made](store)
    assert words in (await viewer.get(f"/runs/{store.run}{path}")).text.replace("&#39;", "'")
