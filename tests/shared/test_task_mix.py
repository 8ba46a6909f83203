"""Mixtures: every source has its share at every point; settings arrive in the tasks; imports repeat, continue and grow."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.documents import Task, task_id
from shared.errors import ConfigError
from shared.store import Store
from shared.tasks.files import ImportResult
from shared.tasks.line_errors import TaskFileError
from shared.tasks.mix import TasksConfig, import_mix, interleave
from tests.conftest import ROOT

WEIGHTS = st.lists(st.integers(1, 40) | st.decimals("0.01", "9.99", places=2).map(float), min_size=1, max_size=7)


@given(weights=WEIGHTS, length=st.integers(1, 120))
def test_after_every_place_each_source_has_its_share_to_within_one(weights: list[float], length: int) -> None:
    given: Counter[int] = Counter()
    for places, source in enumerate(interleave(weights, length), start=1):
        given[source] += 1
        for i, weight in enumerate(weights):
            assert abs(given[i] - places * weight / sum(weights)) < 1 + 1e-9


def test_a_longer_sequence_begins_with_the_shorter() -> None:
    weights = [3, 2.5, 1]
    assert list(interleave(weights, 300))[:100] == list(interleave(weights, 100))
    assert list(interleave([2, 1], 6)) == [0, 1, 0, 0, 1, 0]


def sizes(folder: Path, **counts: int) -> None:
    for name, count in counts.items():
        lines = [{"id": str(k), "query": f"{name} {k}?", "answer": "4", "scorer": "math"} for k in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def mix(*sources: dict[str, Any], epochs: int = 1) -> TasksConfig:
    return TasksConfig.model_validate(
        {"sources": [{"file": f"{s['name']}.jsonl"} | s for s in sources], "epochs": epochs}
    )


async def bring(store: Store, config: TasksConfig, root: Path) -> ImportResult:
    return await import_mix(store, config, policy="main", num_generations=2, root=root)


async def in_order(store: Store, split: str = "train") -> list[Task]:
    tasks = [Task.from_mongo(d) for d in await store.database["tasks"].find({"split": split}).sort("seq", 1).to_list()]
    assert [task.seq for task in tasks] == list(range(len(tasks)))
    return tasks


async def test_without_weights_every_task_has_one_place_and_the_sources_are_spread_evenly(
    store: Store, tmp_path: Path
) -> None:
    sizes(tmp_path, a=30, b=10)
    assert await bring(store, mix({"name": "a"}, {"name": "b"}), tmp_path) == ImportResult(40, 0)
    tasks = await in_order(store)
    assert len({task.tid for task in tasks}) == 40
    for start in range(0, 40, 4):
        assert Counter(task.source for task in tasks[start : start + 4]) == {"a": 3, "b": 1}


async def test_a_heavy_source_comes_again_as_its_next_epoch_and_a_light_one_is_not_used_up(
    store: Store, tmp_path: Path
) -> None:
    sizes(tmp_path, small=4, large=20)
    await bring(store, mix({"name": "small", "weight": 1}, {"name": "large", "weight": 1}), tmp_path)
    tasks = await in_order(store)
    assert [t.id for t in tasks if t.source == "small"] == [
        task_id("main", "train", k // 4, f"small/{k % 4}") for k in range(12)
    ]
    assert [t.tid for t in tasks if t.source == "large"] == [f"large/{k}" for k in range(12)]


async def test_settings_of_a_source_replace_those_of_its_lines_and_stand_in_every_task(
    store: Store, tmp_path: Path
) -> None:
    sizes(tmp_path, a=2, b=2)
    settings = {
        "scorer": "exact_match",
        "tools": ["calculator"],
        "system": "be brief",
        "max_turns": 3,
        "temperature": 0.5,
        "max_pass_rate": 0.9,
    }
    await bring(store, mix({"name": "a", "num_generations": 5, **settings}, {"name": "b"}), tmp_path)
    tasks = await in_order(store)
    a, b = (next(task for task in tasks if task.source == name) for name in "ab")
    assert {name: getattr(a.payload, name) for name in settings} == settings
    assert (a.num_generations, len(a.slots), a.payload.answer) == (5, 5, "4")
    assert (b.num_generations, b.payload.scorer, b.payload.max_turns) == (2, "math", None)


async def test_an_import_again_changes_nothing_and_more_epochs_continue_the_sequence(
    store: Store, tmp_path: Path
) -> None:
    sizes(tmp_path, a=5, b=3)
    sources = ({"name": "a", "weight": 2}, {"name": "b", "weight": 1})
    await bring(store, mix(*sources), tmp_path)
    before = await in_order(store)
    assert await bring(store, mix(*sources), tmp_path) == ImportResult(0, 8)
    assert await bring(store, mix(*sources, epochs=2), tmp_path) == ImportResult(8, 8)
    assert (await in_order(store))[:8] == before
    await store.database["tasks"].delete_many({"seq": {"$gte": 3}})  # as an import that was killed leaves it
    assert await bring(store, mix(*sources, epochs=2), tmp_path) == ImportResult(13, 3)
    assert [t.id for t in (await in_order(store))[:8]] == [t.id for t in before]


async def test_held_out_sources_are_bound_to_version_0_and_come_once(store: Store, tmp_path: Path) -> None:
    sizes(tmp_path, a=3, held=2)
    await bring(store, mix({"name": "a"}, {"name": "held", "split": "eval"}, epochs=3), tmp_path)
    assert [(t.epoch, t.at_version) for t in await in_order(store, "eval")] == [(0, 0), (0, 0)]
    assert len(await in_order(store)) == 9


async def test_nothing_is_written_when_one_file_is_wrong(store: Store, tmp_path: Path) -> None:
    sizes(tmp_path, a=3, b=3)
    (tmp_path / "b.jsonl").write_text('{"id": "x"}\n')
    with pytest.raises(TaskFileError, match=r'b.jsonl:1: "query" is missing'):
        await bring(store, mix({"name": "a"}, {"name": "b"}), tmp_path)
    assert await store.tasks.count_by_status() == {}


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([{"name": "a"}, {"name": "a"}], "two sources of split train are named 'a'"),
        ([{"name": "a", "weight": 0}], "greater than 0"),
        ([{"name": "a b"}], "source name 'a b': expected"),
        (
            [{"name": "a", "min_pass_rate": 0.9, "max_pass_rate": 0.1}],
            "a: min_pass_rate 0.9 is above max_pass_rate 0.1",
        ),
        ([{"name": "a", "split": "eval", "weight": 2}], "a: weight is for split train"),
        ([{"name": "a", "turns": 2}], "Extra inputs"),
    ],
)
def test_a_wrong_source_is_refused(sources: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mix(*sources)


async def test_a_mixture_without_sources_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mix.yml").write_text("tasks: {epochs: 2}")
    with pytest.raises(ConfigError, match="no sources in section tasks"):
        await bring(store, TasksConfig.load(["--config", str(tmp_path / "mix.yml")]), tmp_path)


async def test_the_bundled_mixture_is_imported(store: Store) -> None:
    config = TasksConfig.load(["--config", str(ROOT / "assets" / "mix.yml")])
    await bring(store, config.model_copy(update={"epochs": 1}), ROOT)
    shares = Counter(task.source for task in await in_order(store))
    assert shares == {"sums": 300, "boxes": 200, "colors": 100}
    assert Counter(task.source for task in await in_order(store, "eval")) == {"sums": 40, "boxes": 40, "colors": 40}
