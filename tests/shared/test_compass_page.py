"""Every filter and pipeline of docs/look/compass.md runs, and answers its question on a played run."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.documents.run import FileEntry
from shared.documents.states import SlotStatus
from shared.store import Store
from tests.shared.episodes import whole_run

PAGE = (Path(__file__).parents[2] / "docs" / "look" / "compass.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
QUERIES = [
    (title, collection, kind, text)
    for title, section in QUESTIONS
    for collection, kind, text in re.findall(
        r"^`(\w+)`, (filter|pipeline).*?```json\n(.*?)```", section, re.MULTILINE | re.DOTALL
    )
]
Rows = list[dict[str, Any]]
ANSWERS: dict[tuple[str, str], Callable[[Rows], bool]] = {
    ("Why did this group score 0?", "filter"): lambda rows: [row["score"] for row in rows] == [0.0, 1.0],
    ("Why did this group score 0?", "pipeline"): lambda rows: sum(row["episodes"] for row in rows) == 3,
    ("Which groups teach nothing?", "pipeline"): lambda rows: [(r["groups"], r["all_same"]) for r in rows] == [(3, 0)],
    ("What trained step 1?", "filter"): lambda rows: len(rows) == 2,
    ("What trained step 1?", "pipeline"): lambda rows: len(rows) == 2 and all(row["query"] for row in rows),
    ("Which tool fails most?", "pipeline"): lambda rows: (
        [(r["_id"], r["calls"], r["errors"]) for r in rows] == [("calculator", 6, 1)]
    ),
    ("Which tool fails most?", "filter"): lambda rows: [row["tool_calls"][0]["is_error"] for row in rows] == [True],
    ("Which tool calls were slowest?", "pipeline"): lambda rows: (
        len(rows) == 6 and (rows[0]["record"], rows[0]["seconds"]) == ("main:train:0:t1:0:1", 99.5)
    ),
    ("Which replies could not be parsed?", "filter"): lambda rows: [row["error"] for row in rows] == ["no JSON"],
    ("How stale is what is trained?", "pipeline"): lambda rows: [r["_id"]["step"] for r in rows] == [1],
    ("How stale is what is trained?", "filter"): lambda rows: [row["step"] for row in rows] == [1],
    ("Which episodes are slowest?", "pipeline"): lambda rows: len(rows) == 6 and rows[0]["seconds"] >= 0,
    ("What does the infrastructure fail at?", "pipeline"): lambda rows: [r["slots"] for r in rows] == [1],
    ("Which versions have this file?", "filter"): lambda rows: [row["step"] for row in rows] == [9],
    ("How does one episode read?", "filter"): lambda rows: all(row["messages"] for row in rows) and len(rows) > 1,
}


def test_each_question_has_an_answer_here() -> None:
    assert {(title, kind) for title, _, kind, _ in QUERIES} == set(ANSWERS)
    assert {title for title, _ in QUESTIONS} == {title for title, *_ in QUERIES}


async def test_each_filter_and_pipeline_answers_its_question(store: Store) -> None:
    await whole_run(store, tasks=3)
    await store.database["tasks"].update_one(
        {"_id": "main:train:0:t2"},
        {"$set": {"slots.0.error": "ToolFailure: gone", "slots.0.status": SlotStatus.FAILED}},
    )
    turns = store.database["dispatched_sampling_tasks"]
    await turns.update_one({"_id": "main:train:0:t2:1:1:0"}, {"$set": {"tool_calls.0.is_error": True}})
    await turns.update_one({"_id": "main:train:0:t2:1:1:1"}, {"$set": {"status": "formaterror", "error": "no JSON"}})
    await turns.update_one({"_id": "main:train:0:t1:0:1:0"}, {"$set": {"tool_calls.0.duration_s": 99.5}})
    weights: FileEntry = {"sha256": "cd" * 32, "bytes": 5}
    await store.versions.announce("main", 9, "/weights/9", {"model.safetensors": weights})
    names = {
        "DIGEST": "cd" * 32,
        "main:train:0:TASK:SLOT:ATTEMPT": "main:train:0:t0:1:1",
        "main:train:0:TASK": "main:train:0:t0",
    }
    for title, collection, kind, text in QUERIES:
        for placeholder, name in names.items():
            text = text.replace(placeholder, name)
        query, documents = json.loads(text), store.database[collection]
        found = documents.find(query).sort("_id") if kind == "filter" else await documents.aggregate(query)
        rows = await found.to_list()
        assert ANSWERS[title, kind](rows), (title, kind, rows)


async def test_every_collection_of_a_run_is_on_the_page(store: Store) -> None:
    await whole_run(store, tasks=3)
    named = set(re.findall(r"`(\w+)`", PAGE.split("## ")[0]))
    assert set(await store.database.list_collection_names()) - named - {"tool_schemas"} == set()


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query[0]} {query[2]}")
def test_what_is_pasted_has_no_writing_stage(query: tuple[str, str, str, str]) -> None:
    assert not re.search(r"\$(out|merge|set|unset)\b", query[3])
