"""Gymnasium worlds that this module registers as it is imported, as third-party packages do."""

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from tests.sampler.environments.returned_values import SEEN, WRONG

Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Shown(gymnasium.Env):  # type: ignore[misc]  # not installed where types are checked
    """`show`: what it observes."""

    def __init__(self, show: str) -> None:
        self.action_space = Text(8) if show == "capital" else Discrete(2)
        box = Box(0, 255, (210, 160, 3) if show == "picture" else (2, 2), np.uint8)
        codes = Box(0, 10, (40, 40), np.uint8)
        spaces = {"picture": box, "codes": codes, "parts": Dict({"at": Discrete(4), "grid": box, "mission": Text(20)})}
        self.observation_space = spaces.get(show, Discrete(4))
        self._show = show

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        right = np.float32(action == "Paris") if self._show == "capital" else np.float32(0.5)
        return self._seen(), right, self._show == "capital", False, {}

    def _seen(self) -> Any:
        grid = np.zeros((2, 2), np.uint8)
        if self._show == "grows":
            return np.zeros((40, 40))
        if self._show == "picture":
            return np.full((210, 160, 3), 7, np.uint8)
        return {"at": np.int64(3), "grid": grid, "mission": "find it"} if self._show == "parts" else np.int64(3)


class Camera(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    """A red square moves right over 64 x 48 pixels, seen from above and from the wrist, beside its number."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium has it
    action_space = Discrete(2)
    observation_space = Dict(
        {
            "at": Discrete(8),
            "above": Box(0, 255, (48, 64, 3), np.uint8),
            "hand": Dict({"wrist": Box(0, 1, (3, 24, 32), np.float32)}),
        }
    )

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self._at = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._at = 0
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        self._at += int(action)
        return self._seen(), float(action), self._at == 7, False, {}

    def render(self) -> Any:
        return self._frame().repeat(4, 0).repeat(4, 1)

    def _seen(self) -> Any:
        wrist = (self._frame()[::2, ::2].transpose(2, 0, 1) / 255).astype(np.float32)
        return {"at": np.int64(self._at), "above": self._frame(), "hand": {"wrist": wrist}}

    def _frame(self) -> Any:
        frame = np.zeros((48, 64, 3), np.uint8)
        frame[16:24, 8 * self._at : 8 * self._at + 8] = (255, 0, 0)
        return frame


class Frames(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    """256 x 256 pixels, other ones at each step; 50 steps."""

    action_space = Discrete(2)
    observation_space = Box(0, 255, (256, 256, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        self._at += 1
        return self._seen(), 1.0, self._at == 50, False, {}

    def _seen(self) -> Any:
        """Noise in the half of the frame, which no PNG makes smaller."""
        frame = np.zeros((256, 256, 3), np.uint8)
        frame[:128] = self.np_random.integers(0, 256, (128, 256, 3), np.uint8)
        return frame


class Code(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    """Solved by two lines that begin with blanks, or by a word in capitals."""

    action_space = Text(40, charset="abcdefghijklmnopqrstuvwxyzCRANE 1+=\n")
    observation_space = Discrete(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> Step:
        return 0, float(action in ("    a = 1\n    b = 1", "CRANE")), True, False, {}


class Asserts(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    def __init__(self) -> None:
        raise AssertionError("a world of its own")


class Wants(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    """It cannot begin without an option of its reset."""

    action_space = observation_space = Discrete(9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert options is not None
        return int(options["low"]), {}


class Global(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    """It draws from the global generators alone."""

    action_space, observation_space = Discrete(2), Tuple([Discrete(1000), Discrete(1000)])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._drawn(), {}

    def step(self, action: Any) -> Step:
        return self._drawn(), 0.0, False, False, {}

    def _drawn(self) -> tuple[int, int]:
        return random.randrange(1000), int(np.random.randint(1000))


class Odd(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    """What its step returns is wrong, by the action's number in `WRONG`, beneath a wrapper that unpacks it."""

    action_space = Discrete(20)
    observation_space = Box(0, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Step:
        right: list[Any] = [np.zeros(2, np.float32), 0.0, False, False, {}]
        _, change = WRONG[action]
        return change(right)  # type: ignore[no-any-return]  # of a type that is not known


class Shows(gymnasium.Env):  # type: ignore[misc]  # its base has no types
    """Observations and drawings of every type, by the action's number in `SEEN`."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - as Gymnasium has it
    action_space = Discrete(20)
    observation_space = gymnasium.Space()

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self._at = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> Step:
        self._at = action
        return SEEN[action][0], 0.0, np.bool_(False), np.False_, {}  # type: ignore[return-value]  # wrong on purpose

    def render(self) -> Any:
        return SEEN[self._at][1]


for _name in ("Picture", "Codes", "Parts", "Grows", "Capital"):
    gymnasium.register(f"{_name}-v0", Shown, kwargs={"show": _name.lower()}, disable_env_checker=True)
for _world in (Code, Asserts, Wants, Global, Shows, Camera, Frames):
    gymnasium.register(f"{_world.__name__}-v0", _world, disable_env_checker=True)
gymnasium.register("Odd-v0", Odd, max_episode_steps=50)
