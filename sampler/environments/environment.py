"""`Environment`: what an adapter, or an environment of your own, provides. Standard library only: it is loaded in the workers.

    class Guess(Environment):
        def start(self, index, task):
            self.number = index % 10
            return Step([{"role": "user", "content": "A digit from 0 to 9?"}])

        def interact(self, replies):
            right = reply_text(replies).strip() == str(self.number)
            return Step(status=COMPLETED, reward=float(right))

    python -m sampler.environments --environments guess=guess.py:Guess

One object plays one session. An exception is a failure of the environment: the episode is played again and never scored. What
is no `Step` of the right values (`checked_step.py`) fails it once: the world's code is wrong, and would be wrong again.
What the model did wrong is a message to it, a reward, or an end of the session.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

Message = dict[
    str, Any
]  # as OpenAI's Chat Completions has it; its content may have images of any form that `pixels.py` reads
Index = int | str

SESSION_HEADER = "session_id"
MAX_LINE_BYTES = 32 << 20  # of a worker's answer: a step with all its messages
STEP_SHARE = 0.8  # of `within_s`, which an adapter may use: after it the whole worker is ended, with all its sessions
SCORE = "score"  # among the metrics: the episode's
MAX_STEP_IMAGES = 64  # of a step, which may be a whole history
MAX_STEP_IMAGE_BYTES = 8 << 20  # of their files; in base64 a third more, and an answer has at most 16 MiB
MAX_SEATS = 1000
MAX_SEED, MAX_SEED_DIGITS = 2**63, 19
FINAL = "final"  # of a refusal: the same would happen again
NO_INDEX = -1  # in a request: the index is among the fields of custom_task

# The protocol's statuses.
RUNNING = "running"
COMPLETED = "completed"  # the world is at its end
CONTEXT_LIMIT = "agent context limit"
VALIDATION_FAILED = "agent validation failed"  # the reply is not what the world takes; its end
INVALID_ACTION = "agent invalid action"  # the action is not possible; its end
TASK_LIMIT = "task limit reached"  # the world's own limit of steps
UNKNOWN = "unknown"
TASK_ERROR = "task error"  # the world failed
CANCELLED = "cancelled"
STATUSES = (
    *(RUNNING, COMPLETED, CONTEXT_LIMIT, VALIDATION_FAILED, INVALID_ACTION, TASK_LIMIT, UNKNOWN, TASK_ERROR, CANCELLED),
)


class TaskRefused(ValueError):
    """The task names what this environment does not have: no retry can help. The text says what is expected."""


class NoRoom(Exception):
    """A service that the environment uses is full: the session waits, and no failure is counted."""


@dataclass(slots=True)
class Step:
    """What follows from a start or a reply. `messages`: those that are new; with a `system` message, the whole history.
    `tools`: None: as before. `reward`: what this step earned; None: nothing is known. `metrics["score"]`: the episode's.
    A world of several players says whose turn it is, `seat`, whom the messages are for; at its end, `rewards` of each seat."""

    messages: Sequence[Message] = ()
    tools: Sequence[Mapping[str, Any]] | None = None
    status: str = RUNNING
    reward: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    result: Any = None
    seat: int | None = None
    rewards: Mapping[int, float] = field(default_factory=dict)


class Environment(ABC):
    """One session. `name`: what stands behind the colon of its kind, such as FrozenLake-v1."""

    in_threads: ClassVar[bool] = False  # True: sessions of one worker run at the same time, each call in a thread

    within_s: float = math.inf  # time for the call: the worker, with all its sessions, is ended after it

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod  # noqa: B027 - most worlds import all that they need with their module
    def load(cls, name: str) -> None:
        """Import what sessions need, once per worker: what an import draws is then no part of a session's random numbers."""

    @abstractmethod
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        """Begin task `index`. `task`: further fields that the task names. The same arguments give the same world.
        Raises TaskRefused."""

    @abstractmethod
    def interact(self, replies: Sequence[Message]) -> Step:
        """The model's replies since the last step, which are usually one."""

    def close(self) -> None:  # noqa: B027 - most worlds hold nothing that must be closed
        """The session has ended, however it ended."""

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        """The tasks that are there. One that is made from a seed may name a first few."""
        return range(1000)


def reply_text(replies: Sequence[Message]) -> str:
    """The text of the replies."""
    return "\n".join(str(reply.get("content") or "") for reply in replies)


def user_says(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def user_shows(*parts: Any) -> list[Message]:
    """Texts and images, in order. An image: an array, Pillow's image, or the bytes of a file (`pixels.py`)."""
    return [{"role": "user", "content": list(parts)}]


def seed_of(index: Index) -> int:
    """The seed that an index is: from 0 to 2**63 - 1. Raises TaskRefused."""
    digits = str(index)
    if digits.isascii() and digits.isdigit() and len(digits) <= MAX_SEED_DIGITS and int(digits) < MAX_SEED:
        return int(digits)
    shown = digits if len(digits) <= MAX_SEED_DIGITS else f"{digits[:MAX_SEED_DIGITS]}…"
    actual = shown if isinstance(index, int) else repr(shown)
    raise TaskRefused(f"index is {actual}; expected a whole number, which is the seed, from 0 to 2**63 - 1")
