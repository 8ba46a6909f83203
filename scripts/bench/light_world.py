"""The environment of `scripts.bench.environments`, which costs nothing. `custom_task`: `slow_s` of a step, `steps` to its end."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments import Environment, Step
from sampler.environments.environment import COMPLETED, Index, Message, user_says


class LightWorld(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        self.slow_s, self.left = float(task.get("slow_s", 0)), int(task.get("steps", 1 << 30))
        return Step(user_says(f"world {index}"))

    def interact(self, replies: Sequence[Message]) -> Step:
        if self.slow_s:
            time.sleep(self.slow_s)
        self.left -= 1
        return Step(user_says("on"), status="running" if self.left else COMPLETED, reward=1.0)
