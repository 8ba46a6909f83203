"""Gymnasium worlds that this module registers as it is imported, as third-party packages do."""

from typing import Any

import gymnasium
import numpy as np


class Shown(gymnasium.Env):  # type: ignore[type-arg,misc]  # not installed where types are checked
    """`show`: what it observes."""

    def __init__(self, show: str) -> None:
        self.action_space = gymnasium.spaces.Text(8) if show == "capital" else gymnasium.spaces.Discrete(2)
        box = gymnasium.spaces.Box(0, 255, (210, 160, 3) if show == "picture" else (2, 2), np.uint8)
        parts = {"at": gymnasium.spaces.Discrete(4), "grid": box, "mission": gymnasium.spaces.Text(20)}
        spaces = {"picture": box, "parts": gymnasium.spaces.Dict(parts)}
        self.observation_space = spaces.get(show, gymnasium.spaces.Discrete(4))
        self._show = show

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        right = np.float32(action == "Paris") if self._show == "capital" else np.float32(0.5)
        return self._seen(), right, self._show == "capital", False, {}

    def _seen(self) -> Any:
        grid = np.zeros((2, 2), np.uint8)
        if self._show == "grows":
            return np.zeros((40, 40))
        return {"at": np.int64(3), "grid": grid, "mission": "find it"} if self._show == "parts" else np.int64(3)


for _name in ("Picture", "Parts", "Grows", "Capital"):
    gymnasium.register(f"{_name}-v0", Shown, kwargs={"show": _name.lower()}, disable_env_checker=True)
