"""An OpenEnv server of a counting game. Runs in a Python that has `openenv`. Usage: python openenv_server.py PORT SESSIONS"""

import sys
import threading
from typing import Any

import uvicorn
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Count(Action):
    number: int


class Seen(Observation):
    text: str = ""


class Pictured(Seen):
    """With an image, as BrowserGym's environment has it."""

    screenshot: list[list[list[int]]]


class Counting(Environment):  # type: ignore[type-arg]  # not installed where types are checked
    """From the seed on, the model counts two numbers."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, pictures: bool = False, **_: Any) -> Seen:
        self.at, self.left = seed or 0, 2
        if pictures:
            return Pictured(text=f"count on from {self.at}", screenshot=[[[self.at, 0, 255]] * 40] * 30)
        return Seen(text=f"count on from {self.at}")

    def step(self, action: Count, timeout_s: float | None = None, **_: Any) -> Seen:
        if action.number == -1:
            raise RuntimeError("the counter is broken")
        if action.number == -2:
            threading.Event().wait(600)
        right = action.number == self.at + 1
        self.at, self.left = action.number, self.left - 1
        return Seen(text=f"at {self.at}", reward=float(right), done=self.left == 0)

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    app = create_fastapi_app(Counting, Count, Seen, max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
