"""Gymnasium's worlds with discrete or text actions, told as text: `gymnasium:FrozenLake-v1`.

    name          an id that gymnasium knows, or module:id: the module is imported, and registers the world

    custom_task   {"options": {"is_slippery": false}, "actions": ["left", …], "instruction": "…"}
    index         the seed of the reset

The model replies with an action's name or number, between <action> and </action> or as the last one that it names. A reply
without an action costs its turn and no step of the world. The reward of a turn is the step's.
"""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments.adapters.observed import LEGENDS, as_text, drawing, require_small
from sampler.environments.environment import (
    COMPLETED,
    RUNNING,
    TASK_LIMIT,
    Environment,
    Index,
    Message,
    Step,
    TaskRefused,
    reply_text,
    require_known,
    seed_of,
    user_says,
)

# Names of the actions, by the beginning of a world's id, in the order of their numbers.
NAMES = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "none", "right"),
    "Acrobot": ("left", "none", "right"),
    "MiniGrid": ("left", "right", "forward", "pickup", "drop", "toggle", "done"),
    "BabyAI": ("left", "right", "forward", "pickup", "drop", "toggle", "done"),
}
MAX_DIGITS = 12  # of a number that a reply says: Python reads none of more than 4,300
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)


class GymnasiumEnvironment(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        require_known(task, "options", "actions", "instruction")
        options = task.get("options") or {}
        if not isinstance(options, Mapping):
            raise TaskRefused(f"options is {options!r}; expected an object: names and values")
        self._env = self._made(dict(options))
        self._names = self._action_names(task.get("actions"))
        self._said = _said(self._names)
        self._steps = self._invalid = 0
        observation, _ = self._env.reset(seed=seed_of(index))
        instruction = task.get("instruction") or " ".join([f"You play {self._id}.", *self._legend()])
        return Step(user_says(f"{instruction}\n{self._ask()}\n\n{self._look(observation)}"))

    def interact(self, replies: Sequence[Message]) -> Step:
        action = self._action(reply_text(replies))
        if action is None:
            self._invalid += 1
            return Step(user_says(f"That names no action. {self._ask()}"), reward=0.0, metrics=self._metrics())
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._steps += 1
        status = COMPLETED if terminated else TASK_LIMIT if truncated else RUNNING
        return Step(user_says(self._look(observation)), status=status, reward=reward, metrics=self._metrics())

    def close(self) -> None:
        if hasattr(self, "_env"):
            self._env.close()

    def _made(self, options: dict[str, Any]) -> Any:
        import gymnasium

        try:
            env = gymnasium.make(self.name, **options)
            if "ansi" in env.metadata.get("render_modes", ()):
                env.close()
                env = gymnasium.make(self.name, **{**options, "render_mode": "ansi"})
        except (gymnasium.error.Error, ImportError, TypeError, ValueError, KeyError) as exc:
            raise TaskRefused(f"gymnasium cannot make {self.name} with options {options}: {exc}") from exc
        self._renders = env.render_mode == "ansi"
        try:
            require_small(self.name, env.observation_space)
        except TaskRefused:
            env.close()
            raise
        space = env.action_space
        if not isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.Text):
            env.close()
            raise TaskRefused(f"{self.name} takes actions of {space}; expected a discrete or a text space")
        self._first = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self._count = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
        return env

    def _action_names(self, given: Any) -> tuple[str, ...]:
        names = given or next((names for head, names in NAMES.items() if self._id.startswith(head)), ())
        if names and self._count and len(names) != self._count:
            raise TaskRefused(f"actions has {len(names)} names; expected {self._count}, one for each action")
        return tuple(str(name).lower() for name in names)

    def _ask(self) -> str:
        if not self._count:
            return "Reply with your action between <action> and </action>."
        last = self._first + self._count - 1
        listed = ", ".join(self._names) or f"a number from {self._first} to {last}"
        return f"Reply with one action: {listed}."

    def _action(self, text: str) -> Any:
        """The action that a reply names; None: it names none."""
        marked = _ACTION.findall(text)
        raw = marked[-1] if marked else text
        said = raw.strip().lower()
        if not self._count:  # as the model wrote it, if the world takes it so
            return next((one for one in (raw, raw.strip(), said) if self._env.action_space.contains(one)), None)
        found: int | None = None
        for word in self._said.findall(said):
            if word in self._names:
                found = self._names.index(word)
            elif word.lstrip("-").isdigit() and len(word) <= MAX_DIGITS and 0 <= int(word) - self._first < self._count:
                found = int(word) - self._first
        return None if found is None else self._first + found

    def _look(self, observation: Any) -> str:
        """What the model sees: the world as text where it draws itself so, and the observation."""
        told = f"Observation: {as_text(observation)}"
        drawn = drawing(self._env.render()) if self._renders else ""
        return f"{drawn}\n\n{told}" if drawn else told

    def _legend(self) -> list[str]:
        return [text for head, text in LEGENDS.items() if self._renders and self._id.startswith(head)]

    @property
    def _id(self) -> str:
        return self.name.rpartition(":")[2]

    def _metrics(self) -> dict[str, Any]:
        return {"world_steps": self._steps, "invalid_actions": self._invalid}

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        import gymnasium

        module, _, identity = name.rpartition(":")
        if module:
            importlib.import_module(module)
        gymnasium.spec(identity)  # raises for a world that is not there
        return range(1000)


def _said(names: Sequence[str]) -> re.Pattern[str]:
    """Finds the names of actions, of several words too, and numbers; the longest name first. Other words are found whole, so
    that no name is found within one."""
    listed = "".join(rf"(?<!\w){re.escape(name)}(?!\w)|" for name in sorted(names, key=len, reverse=True))
    return re.compile(listed + r"[a-z_]+|-?\d+")
