"""The environment of `scripts.bench.environments`, which costs nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments import Environment, Step
from sampler.environments.environment import Index, Message, user_says


class LightWorld(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        return Step(user_says(f"world {index}"))

    def interact(self, replies: Sequence[Message]) -> Step:
        return Step(user_says("on"), reward=1.0)
