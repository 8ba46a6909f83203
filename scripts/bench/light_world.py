"""The environments of `scripts.bench.environments`: one that costs nothing, and one that shows pixels."""

from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments import Environment, Step
from sampler.environments.environment import Index, Message, user_says, user_shows


class LightWorld(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_says(f"world {index}"))

    def interact(self, replies: Sequence[Message]) -> Step:
        return Step(user_says("on"), reward=1.0)


class PixelWorld(Environment):
    """A frame of `side` x `side` pixels at each step: a drawing, in which a square moves, or noise."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        import numpy as np

        self.side, self.at = int(task["side"]), 0
        self.noise = np.random.default_rng(int(index)) if task["kind"] == "noise" else None
        self.frames = np
        return Step(user_shows("world", self._frame()))

    def interact(self, replies: Sequence[Message]) -> Step:
        self.at += 1
        return Step(user_shows(self._frame()), reward=1.0)

    def _frame(self) -> Any:
        if self.noise is not None:
            return self.noise.integers(0, 256, (self.side, self.side, 3), self.frames.uint8)
        frame = self.frames.zeros((self.side, self.side, 3), self.frames.uint8)
        tile = self.side // 8
        row, column = divmod(self.at % 64, 8)
        frame[tile * row : tile * (row + 1), tile * column : tile * (column + 1)] = (255, 0, 0)
        return frame
