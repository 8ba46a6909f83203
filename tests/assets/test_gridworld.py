"""The grid world of the custom samplers' page: its walks, its payload, its tasks."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from assets.gridworld.demonstrations import KNOWING, main
from assets.gridworld.make_tasks import COUNTS
from assets.gridworld.world import STEPS, GridTask, Walker
from assets.guided_walk import demonstrations as guided
from tests.conftest import ROOT

TASK = GridTask(size=3, start=(0, 0), goal=(2, 1))


def test_a_walk_ends_where_its_letters_lead_and_the_border_stops_it() -> None:
    walker = Walker(TASK, TASK.start)
    assert (walker.look(), walker.distance) == ("goal: 2 east, 1 north", 3)
    for reply, taken in (("w", False), ("I go East", True), ("?", False), ("n", True), ("e", True), ("e", False)):
        assert walker.walk(reply) is taken, reply
    assert (walker.place, walker.distance) == ((2, 1), 0)


@pytest.mark.parametrize("wrong", [{"start": (3, 0)}, {"goal": (0, 0)}, {"size": 1}, {"walls": []}])
def test_a_task_that_nobody_could_walk_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GridTask.model_validate(TASK.model_dump() | wrong)


def test_the_bundled_tasks_can_be_walked_and_none_is_in_both_files() -> None:
    seen = set()
    for split, count in COUNTS.items():
        lines = (ROOT / "assets" / "gridworld" / f"{split}.jsonl").read_text().splitlines()
        walks = {GridTask.model_validate(json.loads(line)["metadata"]) for line in lines}
        assert len(walks) == len(lines) == count
        assert not walks & seen
        seen |= walks


def test_a_step_leads_nearer_or_not_and_looking_changes_nothing() -> None:
    walker = Walker(TASK, TASK.start)
    assert [letter for letter in STEPS if walker.leads_nearer(letter)] == ["n", "e"]
    assert not walker.leads_nearer("?")
    assert walker.place == TASK.start


@pytest.mark.parametrize("write", [main, guided.main], ids=["gridworld", "guided"])
def test_demonstrations_are_right_a_little_more_often_than_blind_letters(
    write: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demonstrations.jsonl"
    monkeypatch.setattr(sys, "argv", ["demonstrations", str(path)])
    write()
    replies: dict[str, list[bool]] = {"goal": [], "guide": []}
    for line in path.read_text().splitlines():
        messages = json.loads(line)["messages"]
        for asked, reply in zip(messages[::2], messages[1::2], strict=True):
            text, letter = asked["content"], reply["content"]
            assert letter in STEPS
            if text.startswith("goal: "):
                replies["goal"].append(
                    letter in {part.split()[1][0] for part in text.removeprefix("goal: ").split(", ")}
                )
            else:
                replies["guide"].append(letter == text.removeprefix("the guide says "))
    share = {kind: sum(right) / len(right) for kind, right in replies.items() if right}
    assert ("guide" in share) == (write is guided.main)
    assert KNOWING < share["goal"] < 0.75
    if "guide" in share:
        assert abs(share["guide"] - (KNOWING + (1 - KNOWING) / len(STEPS))) < 0.05
