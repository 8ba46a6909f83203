"""Worlds of the tests that show images, as lists of numbers. Standard library only: they are loaded in the workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments import Environment, Step
from sampler.environments.environment import COMPLETED, Index, Message, reply_text, user_shows
from sampler.environments.pixels import image_file
from tests.sampler.environments.worlds import tool

SIDE = 56  # pixels


def shade(number: int, side: int = SIDE) -> list[list[int]]:
    return [[40 * number % 256] * side for _ in range(side)]


class Looking(Environment):
    """An image of its own at each step; what it does else is what the reply says."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        self.index, self.turn = int(index), 0
        opening = user_shows(*([] if task.get("silent") else ["Look:"]), {"type": "image", "image": shade(self.index)})
        self.history = [{"role": "system", "content": "You see."}, *opening] if task.get("restarts") else opening
        return Step(self.history, tools=[tool("look")] if task.get("tools") else None)

    def interact(self, replies: Sequence[Message]) -> Step:
        self.turn += 1
        said = reply_text(replies).strip()
        image = {"type": "image", "image": shade(self.index + self.turn)}
        if replies[-1].get("tool_calls"):
            (call,) = replies[-1]["tool_calls"]
            return Step([{"role": "tool", "tool_call_id": call["id"], "content": ["The page:", image, "3 links"]}])
        if said == "broken":
            return Step(user_shows(image_file(shade(1))[:60]))
        if said == "restart":
            self.history += [*replies, *user_shows("again", image)]
            return Step(self.history)
        if said == "end":
            return Step(status=COMPLETED, reward=1.0)
        new = user_shows(f"turn {self.turn}", image)
        self.history += [*replies, *new]
        return Step(new, reward=0.0)


class Table(Environment):
    """Two players, each of whom sees an image."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_shows("seat 0", {"type": "image", "image": shade(1)}), seat=0)

    def interact(self, replies: Sequence[Message]) -> Step:
        if not hasattr(self, "second"):
            self.second = True
            return Step(user_shows("seat 1", {"type": "image", "image": shade(2)}), seat=1)
        return Step(status=COMPLETED, rewards={0: 1.0, 1: -1.0})
