"""Gymnasium's worlds with discrete or text actions, shown as text, as pixels, or both: `gymnasium:FrozenLake-v1`.

    name          an id that gymnasium knows, or module:id: the module is imported, and registers the world

    custom_task   {"options": {"is_slippery": false}, "reset": {"low": 0}, "actions": ["left", …], "instruction": "…"}: options of
                  `gymnasium.make` and of the world's `reset`
                  {"show": ["text", "render"], "longest_edge": 256}: what the model sees (`shown.py`), and how large at most
    index         the seed of the reset

The model replies with an action's name or number, alone or between <action> and </action> (`named_action.py`). A reply without
an action costs its turn and no step of the world, and is told what was found. The reward of a turn is the step's.
"""

import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments.adapters.named_action import NumberedActions, TextActions, Unread, action_names
from sampler.environments.adapters.observed import LEGENDS, as_text, drawing, require_fits, require_small
from sampler.environments.adapters.returned import check_returns, reset_values, step_values
from sampler.environments.adapters.shown import ALL, PIXELS, RENDER, TEXT_KIND, Showing, showing_of
from sampler.environments.checked_step import image_part
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
    seed_of,
    user_says,
    user_shows,
)
from sampler.environments.task_fields import OBJECT, TEXT, TEXTS, fields_of, whole

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
MAX_SHOWN_CHARACTERS = 100  # of a text space


class GymnasiumEnvironment(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        kinds = {"options": OBJECT, "reset": OBJECT, "actions": TEXTS, "instruction": TEXT}
        given = fields_of(task, **kinds, show=ALL, longest_edge=whole(1))
        seed = seed_of(index)
        self._env = self._made(dict(given.get("options", {})), given.get("show"), given.get("longest_edge"))
        self._actions = self._actions_of(self._env.action_space, given.get("actions"))
        self._steps = self._invalid = 0
        for space in (self._env.action_space, self._env.observation_space):
            space.seed(seed)  # worlds draw from their spaces too
        observation = self._reset(seed, given.get("reset"))
        instruction = given.get("instruction") or " ".join([f"You play {self._id}.", *self._legend()])
        return Step(self._shown(observation, f"{instruction}\n{self._actions.ask}"))

    def interact(self, replies: Sequence[Message]) -> Step:
        try:
            action = self._actions.read(reply_text(replies))
        except Unread as exc:
            self._invalid += 1
            return Step(user_says(str(exc)), reward=0.0, metrics=self._metrics())
        seen = step_values(self._env.step(action))
        self._steps += 1
        status = COMPLETED if seen.terminated else TASK_LIMIT if seen.truncated else RUNNING
        return Step(self._shown(seen.observation), status=status, reward=seen.reward, metrics=self._metrics())

    def close(self) -> None:
        if hasattr(self, "_env"):
            self._env.close()

    def _made(self, options: dict[str, Any], show: Any, longest_edge: int | None) -> Any:
        """Raises TaskRefused for whatever its constructor raises: the same options would raise it again."""
        if "render_mode" in options:
            raise TaskRefused(
                "options has 'render_mode'; expected none: show says whether the world is drawn, as text or image"
            )
        options = {"disable_env_checker": True, **options}  # what it returns is checked here, with words for it
        env = self._constructed(options)
        try:
            space = env.observation_space
            self._showing = showing_of(self.name, space, show, longest_edge)
            require_small(self.name, space, self._showing.text_values(space))
            mode = self._render_mode(env.metadata.get("render_modes", ()), self._showing)
        except TaskRefused:
            env.close()
            raise
        if mode is not None:
            env.close()
            env = self._constructed({**options, "render_mode": mode})
        self._draws_text = env.render_mode == "ansi"
        check_returns(env)
        return env

    def _constructed(self, options: dict[str, Any]) -> Any:
        import gymnasium

        try:
            return gymnasium.make(self.name, **options)
        except (OSError, MemoryError):  # of the machine
            raise
        except Exception as exc:  # of foreign code, which may raise anything
            given = {name: value for name, value in options.items() if name != "disable_env_checker"}
            raise TaskRefused(
                f"gymnasium cannot make {self.name} with options {given}: {type(exc).__name__}: {exc}"
            ) from exc

    def _render_mode(self, modes: Sequence[str], showing: Showing) -> str | None:
        """A world has one. Raises TaskRefused for one that draws no image."""
        if not showing.has(RENDER):
            return "ansi" if showing.has(TEXT_KIND) and "ansi" in modes else None
        if "rgb_array" not in modes:
            drawn = ", ".join(modes) or "nothing"
            raise TaskRefused(f"show has 'render', and {self.name} renders {drawn}; expected text or pixels")
        for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):  # pygame shall open no window and no sound card
            os.environ.setdefault(name, "dummy")
        return "rgb_array"

    def _reset(self, seed: int, options: Mapping[str, Any] | None) -> Any:
        """The observation. Raises TaskRefused for options that the world does not take."""
        if options is None:
            return reset_values(self._env.reset(seed=seed))
        try:
            returned = self._env.reset(seed=seed, options=dict(options))
        except (TypeError, ValueError, KeyError, AssertionError) as exc:
            raise TaskRefused(f"{self.name} cannot begin with reset {options}: {type(exc).__name__}: {exc}") from exc
        return reset_values(returned)

    def _actions_of(self, space: Any, names: Sequence[str] | None) -> NumberedActions | TextActions:
        """Raises TaskRefused."""
        from gymnasium.spaces import Discrete, Text

        if isinstance(space, Discrete):
            count = int(space.n)
            known = next((known for head, known in NAMES.items() if self._id.startswith(head)), ())
            if names is None:
                return NumberedActions(int(space.start), count, known if len(known) == count else ())
            return NumberedActions(int(space.start), count, action_names(names, count))
        if not isinstance(space, Text):
            raise TaskRefused(f"{self.name} takes actions of {space}; expected a discrete or a text space")
        if names is not None:
            raise TaskRefused(f"actions is given, but {self.name} takes texts; expected no names of actions")
        letters = "".join(sorted(space.character_set))
        shown = letters if len(letters) <= MAX_SHOWN_CHARACTERS else f"{letters[:MAX_SHOWN_CHARACTERS]}…"
        return TextActions(space.contains, f"{space.min_length} to {space.max_length:,} characters of {shown!r}")

    def _shown(self, observation: Any, before: str = "") -> list[Message]:
        """What the model sees: the world as text where it draws itself so, the observation, and images."""
        space = self._env.observation_space
        if self._showing.has(PIXELS):
            require_fits(space, observation)
        text, images = self._showing.split(space, observation)
        texts = [before] if before else []
        if self._draws_text:
            texts.append(drawing(self._env.render()))
        if self._showing.has(TEXT_KIND) and text is not None:
            texts.append(f"Observation: {as_text(text)}")
        require_fits(space, observation)
        parts = self._showing.parts(images)
        if self._showing.has(RENDER):
            parts.append(image_part("render", self._rendered(), self._showing.longest_edge))
        text = "\n\n".join(one for one in texts if one)
        return user_shows(*([text] if text else []), *parts) if parts else user_says(text)

    def _rendered(self) -> Any:
        """Raises TaskRefused where a package is missing that it draws with."""
        from gymnasium.error import DependencyNotInstalled

        try:
            return self._env.render()
        except DependencyNotInstalled as exc:
            raise TaskRefused(f"{self.name} cannot be rendered in this Python: {exc}") from exc

    def _legend(self) -> list[str]:
        return [text for head, text in LEGENDS.items() if self._draws_text and self._id.startswith(head)]

    @property
    def _id(self) -> str:
        return self.name.rpartition(":")[2]

    def _metrics(self) -> dict[str, Any]:
        return {"world_steps": self._steps, "invalid_actions": self._invalid}

    @classmethod
    def load(cls, name: str) -> None:
        import gymnasium

        module, _, identity = name.rpartition(":")
        if module:
            importlib.import_module(module)
        made_by = gymnasium.spec(identity).entry_point  # raises for a world that is not there
        if isinstance(made_by, str):
            with contextlib.suppress(Exception):  # of a package that is not here: its sessions are refused in words
                importlib.import_module(made_by.partition(":")[0])

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        cls.load(name)
        return range(1000)
