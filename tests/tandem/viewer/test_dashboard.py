"""The dashboard, the time line and the comparison: their figures, their bounds, and what they read."""

import re
from collections.abc import Sequence
from datetime import UTC, timedelta
from itertools import pairwise
from typing import Any

import pytest

from shared.documents.run import Admission, TrainedStep, Worker, step_id
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.store.views.dashboard import MOST_POINTS, HeldOutScore, StepRow, faults, step_rows
from shared.store.views.timeline import LaneSpan, Window, newest_end, window_of
from tandem.viewer.curves import charts_of
from tandem.viewer.timeline import MOST_LANES, WIDTH, _lanes
from tests.tandem.viewer.conftest import Client

HOSTILE = "<script>window.taken=1</script>\u202e\x1b[2J\x00<img src=x onerror=window.taken=1>"


async def add_steps(store: Store, steps: Sequence[int], generation: int = 1, reward: float = 0.5) -> None:
    for step in steps:
        name = step_id("main", step, generation)
        await store.steps.add(
            TrainedStep(id=name, policy="main", step=step, trainer_generation=generation, groups=[("t", 8)] * 4)
        )
        await store.steps.note_metrics(name, {"reward/mean": reward, "reward/std": 0.4, "alarm/entropy": step % 2})


async def test_a_resume_shows_the_steps_that_are_part_of_the_weights(store: Store) -> None:
    for _ in range(2):
        seen = await store.runs.read()
        await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1), seen=seen)
    await add_steps(store, [1, 2, 3], generation=1, reward=0.1)
    await add_steps(store, [1, 2], generation=2, reward=0.9)
    rows = await step_rows(store, await store.runs.read(), "main", ["reward/mean"])
    assert [(row.step, row.metrics["reward/mean"]) for row in rows] == [(1, 0.9), (2, 0.9)]
    assert [row.metrics["alarm/entropy"] for row in rows] == [1, 0]


async def test_of_many_steps_every_nth_is_read_and_the_last(store: Store) -> None:
    number = 3 * MOST_POINTS + 1
    steps = [
        {"_id": f"main:{n}:1", "policy": "main", "step": n, "trainer_generation": 1, "groups": [], "metrics": {"a": n}}
        for n in range(1, number + 1)
    ]
    await store.database["trained_steps"].insert_many(steps)
    await store.database.command("profile", 2)
    rows = await step_rows(store, await store.runs.read(), "main", ["a"])
    await store.database.command("profile", 0)
    assert rows[-1].step == number
    assert MOST_POINTS // 2 <= len(rows) <= MOST_POINTS
    assert {b.step - a.step for a, b in pairwise(rows)} == {4}
    asked = await store.database["system.profile"].find({"ns": f"{store.run}.trained_steps"}).to_list()
    assert sum(one["docsExamined"] for one in asked) <= len(rows) + 2, (
        "those shown, and the last step for two questions"
    )


@pytest.mark.parametrize(
    ("spread", "half"), [({"reward/std": 0.4}, 0.1), ({"reward/std": 0.4, "reward/group_std": 0.2}, 0.05)]
)
def test_the_interval_of_the_reward_counts_groups(spread: dict[str, float | None], half: float) -> None:
    row = StepRow(3, groups=16, records=128, created_at=None, metrics={"reward/mean": 0.5, **spread})
    reward = charts_of([row], [], {})[0].series[0]
    assert (reward.low, reward.high) == ([pytest.approx(0.5 - 1.96 * half)], [pytest.approx(0.5 + 1.96 * half)])


def test_held_out_scores_stand_at_the_steps_of_their_versions() -> None:
    found = [HeldOutScore(v, source, 100, mean, 0.3) for v, mean in ((0, 0.2), (9, 0.8)) for source in ("", "a", "b")]
    chart = next(chart for chart in charts_of([], found, {0: (0, None), 9: (7, EPOCH)}) if chart.key == "held_out")
    assert (chart.steps, chart.times) == ([0, 7], [None, EPOCH.replace(tzinfo=UTC).timestamp()])
    assert [(one.label, one.values) for one in chart.series] == [
        ("all", [0.2, 0.8]),
        ("a", [0.2, 0.8]),
        ("b", [0.2, 0.8]),
    ]


async def test_the_dashboard_and_its_twin_agree(viewer: Client, played: str) -> None:
    data = (await viewer.get(f"/runs/{played}.json")).json()
    assert data["row"]["step"] == 1
    reward = next(chart for chart in data["charts"] if chart["key"] == "reward")
    assert (reward["steps"], reward["series"][0]["values"]) == ([1], [0.25])
    text = (await viewer.get(f"/runs/{played}")).text
    assert "Reward of trained episodes" in text
    assert re.search(r'<td class="n">0.25</td>', text), "readable without a script"
    assert data["engines"][0]["url"] in text


async def test_texts_of_processes_and_failures_are_only_shown(viewer: Client, store: Store) -> None:
    await store.workers.heartbeat(
        Worker(id="w", kind="sampler", host="h", pid=1, doing=HOSTILE * 20_000, alarms=[HOSTILE * 20_000])
    )
    failed = {"split": "train", "status": "failed", "finished_at": EPOCH, "source": HOSTILE, "worker": HOSTILE}
    await store.database["records"].insert_one(
        {"_id": HOSTILE, **failed, "termination": HOSTILE, "error": HOSTILE * 20_000, "created_at": EPOCH}
    )
    for path in (f"/runs/{store.run}", f"/runs/{store.run}/timeline"):
        text = (await viewer.get(path)).text
        assert "&lt;script&gt;" in text
        assert not re.search("[\x00\x1b\u202e]|<script>|<img src=x", text)
        assert len(text) < 200_000


async def test_faults_are_the_newest_failed_attempts_by_how_they_ended(store: Store) -> None:
    failed = {"split": "train", "status": "failed", "finished_at": EPOCH}
    rows = ["tool_failure"] * 3 + ["engine_failure"]
    await store.database["records"].insert_many(
        {"_id": f"r{n}", "task": f"t{n}", **failed, "termination": why} for n, why in enumerate(rows)
    )
    assert [(one.termination, one.attempts) for one in await faults(store)] == [
        ("tool_failure", 3),
        ("engine_failure", 1),
    ]


async def test_the_time_line_shows_who_sampled_with_which_weights(store: Store, played: str, viewer: Client) -> None:
    found = (await viewer.get(f"/runs/{played}/timeline.json?seconds=86400")).json()
    names = [lane["name"] for lane in found["lanes"]]
    assert any(name.startswith("trainer main") for name in names) or names
    for lane in found["lanes"]:
        for bar in lane["bars"]:
            assert 0 <= bar["x"] <= WIDTH
            assert bar["width"] > 0
    assert await newest_end(store) is None
    assert (await viewer.get(f"/runs/{store.run}/timeline")).status_code == 200


def lanes_of(number: int) -> Window:
    begin, second = EPOCH, timedelta(seconds=1)
    span = LaneSpan(begin + second, begin + 2 * second, "episode", "s", 3, "r")
    return Window(begin, begin + 4 * second, {f"sampler:h:{n}": [span] for n in range(number)}, [], False)


@pytest.mark.parametrize("number", [1, MOST_LANES, MOST_LANES + 1, 1000])
def test_lanes_above_the_bound_are_folded_into_one(number: int) -> None:
    lanes = _lanes(lanes_of(number))
    assert len(lanes) == min(number, MOST_LANES)
    assert sum(lane.folded or 1 for lane in lanes) == number
    assert sum(lane.num_spans for lane in lanes) == number
    assert all(lane.busy_fraction == pytest.approx(0.25, abs=0.02) for lane in lanes)


def test_what_overlaps_lies_in_rows_below_each_other() -> None:
    begin, second = EPOCH, timedelta(seconds=1)
    spans = [LaneSpan(begin + n * second, begin + (n + 2) * second, "episode", "", n, "r") for n in range(4)]
    (lane,) = _lanes(Window(begin, begin + 6 * second, {"sampler": spans}, [], False))
    assert [bar.row for bar in lane.bars] == [0, 1, 0, 1]
    assert [bar.colour for bar in lane.bars] == ["v0", "v1", "v2", "v3"]


async def test_a_window_reads_its_own_episodes_by_the_index(store: Store) -> None:
    records: list[dict[str, Any]] = [
        {
            "_id": f"r{n}",
            "task": f"t{n}",
            "split": "train",
            "status": "ready",
            "source": "s",
            "worker": "sampler:h:1",
            "created_at": EPOCH + timedelta(seconds=n),
            "finished_at": EPOCH + timedelta(seconds=n + 1),
            "score": 1.0,
        }
        for n in range(2000)
    ]
    await store.database["records"].insert_many(records)
    await store.database.command("profile", 2)
    window = await window_of(store, EPOCH + timedelta(seconds=1000), 10.0)
    await store.database.command("profile", 0)
    assert len(window.lanes["sampler:h:1"]) == 11
    asked = await store.database["system.profile"].find({"ns": f"{store.run}.records"}).to_list()
    assert sum(one["docsExamined"] for one in asked) == 11


async def test_two_runs_are_compared_curve_by_curve(viewer: Client, store: Store, played: str) -> None:
    settings = await store.settings.keep("trainer-main", {"lr": 1}, "t")
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=1), settings=settings)
    await add_steps(store, [1, 2])
    found = (await viewer.get(f"/compare.json?a={played}&b={store.run}")).json()
    reward = next(chart for chart in found["charts"] if chart["key"] == "reward")
    assert reward["steps"] == [1, 2]
    assert [one["label"] for one in reward["series"]] == [f"{played}: all", f"{store.run}: all"]
    assert [one["values"] for one in reward["series"]] == [[0.25, None], [0.5, 0.5]]
    assert {"name": "trainer-main.lr", "a": "–", "b": "1"} in found["settings"]
    assert (await viewer.get(f"/compare?a={played}&b=nope")).status_code == 404
    assert (await viewer.get("/compare?a=admin&b=../x")).status_code == 400
    assert (await viewer.get("/compare")).status_code == 200


@pytest.mark.parametrize("wrong", ["timeline?end=soon", "timeline?seconds=0", "timeline?seconds=x", "?policy=other"])
async def test_a_wrong_parameter_is_named(viewer: Client, played: str, wrong: str) -> None:
    path = f"/runs/{played}/{wrong}" if not wrong.startswith("?") else f"/runs/{played}{wrong}"
    answer = await viewer.get(path)
    assert answer.status_code == 400
    assert "expected" in answer.text
