"""The grid world of the custom samplers' page: its walks, its payload, its tasks."""

import json

import pytest
from pydantic import ValidationError

from assets.gridworld.make_tasks import COUNTS
from assets.gridworld.world import GridTask, Walker
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
