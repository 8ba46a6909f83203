"""What a reply of the bundled worlds asks for, and which fields of a task are refused."""

import random
import re
import time
from typing import Any

import pytest

from sampler.environments import TaskRefused
from sampler.environments.adapters.acting import marked
from sampler.environments.adapters.database import DatabaseEnvironment

MARKS = ("sql", "answer")


def test_what_is_marked_is_what_a_regular_expression_finds() -> None:
    pieces = ("<sql>", "</sql>", "<answer>", "</answer>", "<", "a", "\n", "</", "sql>")
    draw = random.Random(1)
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randrange(14)))
        assert marked(text, MARKS) == re.findall(r"<(sql|answer)>(.*?)</\1>", text, re.DOTALL), text


def test_open_marks_without_end_cost_no_more_than_their_length() -> None:
    begun = time.process_time()
    assert marked("<sql>" * 200_000, MARKS) == []
    assert time.process_time() - begun < 20, "a regular expression takes a quarter of an hour"


@pytest.mark.parametrize("max_turns", ["abc", 0, -1, 1.5, True])
def test_a_wrong_limit_of_turns_is_a_mistake_of_the_task(max_turns: Any) -> None:
    with pytest.raises(TaskRefused, match=f"max_turns is {max_turns!r}; expected a whole number"):
        DatabaseEnvironment("train").start(0, {"max_turns": max_turns})
