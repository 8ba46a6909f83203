"""reasoning-gym's families of tasks, made on the fly from a seed: `reasoning_gym:leg_counting`.

    index         the seed: the same one is the same task
    custom_task   {"config": {"max_animals": 3}, "level": 2}: of the family's configuration, and of its curriculum

One turn: the question; the answer stands between <answer> and </answer> (else it is the whole reply), and the family's own
scorer gives the reward. Some scorers raise at an answer of another form. Such an answer is worth 0, and `result` says what was
raised: if it were a failure, the model would play until it writes the form, and never learn it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments.checked_step import number
from sampler.environments.environment import (
    COMPLETED,
    Environment,
    Index,
    Message,
    Step,
    TaskRefused,
    reply_text,
    seed_of,
)
from sampler.environments.task_fields import OBJECT, fields_of, whole

FORM = "Write your final answer between <answer> and </answer>."
MAX_RAISED_CHARS = 200
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymEnvironment(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        given = fields_of(task, config=OBJECT, level=whole(0))
        self._family = self._made(seed_of(index), given.get("level"), dict(given.get("config", {})))
        self._entry = self._family[0]
        self.answer = str(self._entry["answer"])
        return Step([{"role": "system", "content": FORM}, {"role": "user", "content": str(self._entry["question"])}])

    def interact(self, replies: Sequence[Message]) -> Step:
        text = reply_text(replies)
        marked = _ANSWER.findall(text)
        answer = (marked[-1] if marked else text).strip()
        score, unreadable = self._scored(answer)
        result = {"answer": answer, "expected": str(self._entry.get("answer")), **unreadable}
        return Step(
            status=COMPLETED, reward=score, metrics={"score": score, "formatted": float(bool(marked))}, result=result
        )

    def _scored(self, answer: str) -> tuple[float, dict[str, str]]:
        """The score, and what the scorer raised. Raises if it raises at the right answer, or without one at an empty answer."""
        try:
            value = self._family.score_answer(answer, self._entry)
        except Exception as exc:  # noqa: BLE001 - any family's own code raises what it likes, at a text that a model wrote
            known = self._entry.get("answer")
            self._family.score_answer("" if known is None else str(known), self._entry)
            return 0.0, {"unreadable": f"{type(exc).__name__}: {exc}"[:MAX_RAISED_CHARS]}
        return number(f"the score of {self.name}", value, "a finite number"), {}

    def _made(self, seed: int, level: Any, config: dict[str, Any]) -> Any:
        from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum, create_dataset

        if self.name not in DATASETS:
            raise TaskRefused(f"reasoning-gym has no {self.name!r}; expected one of {', '.join(sorted(DATASETS))}")
        reserved = sorted({"seed", "size"} & set(config))
        if reserved:
            raise TaskRefused(
                f"config has {reserved[0]!r}; expected none: the index is the seed, and a session is one task"
            )
        try:
            if level is None:
                return create_dataset(self.name, **{**config, "seed": seed, "size": 1})
            if self.name not in CURRICULA:
                raise TaskRefused(f"level is {level}, but {self.name} has no curriculum; expected a config")
            curriculum = create_curriculum(self.name)
            curriculum.set_global_level(level)  # it stops at the highest of each attribute
            made = curriculum.generate_configuration({**config, "seed": seed, "size": 1})
            return DATASETS[self.name][0](made)
        except Exception as exc:  # of any family's own checks: the same config would raise it again
            raise TaskRefused(f"reasoning-gym cannot make {self.name} with {config}, level {level}: {exc}") from exc

    @classmethod
    def load(cls, name: str) -> None:
        import reasoning_gym  # noqa: F401

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        import reasoning_gym  # the package registers its families  # noqa: F401
        from reasoning_gym.factory import DATASETS

        if name not in DATASETS:
            raise ValueError(f"reasoning-gym has no {name!r}")
        return range(1000)
