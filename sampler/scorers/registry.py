"""Registers scorers by name and calls them: every call yields a number or `ScorerFailed`.

Promise: `details` of a score names the scorer, the found and the expected answer, and for our own scorers the reason. A missing
answer is score 0 with the reason "no answer". A scorer that crashes, hangs or returns no finite number is `ScorerFailed`, a
judge without a verdict `AgentFailed`: infrastructure failures, never score 0.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sampler.agents import Judge
from sampler.errors import AgentFailed, ScorerFailed
from sampler.scorers.details import explained, no_answer
from shared.errors import ConfigError, OwnCodeFailed
from shared.outside_text import clipped
from shared.redaction import without
from shared.tasks import scorer_names as known_names
from shared.user_code.frames import cause_of, definition_of, told
from shared.user_code.loading import import_own

# Programming mistakes, which every episode would repeat. A single task's data may cause one of these types, too (KeyError is a
# LookupError), so a scorer is given up only after MAX_MISTAKES of them before its first score.
MISTAKES = (AttributeError, ImportError, LookupError, NameError, NotImplementedError, TypeError)
MAX_MISTAKES = 5  # before the scorer's first score
MAX_SHOWN_CHARS = 300  # shown of a scorer's invalid result


@dataclass(frozen=True)
class ScoringRequest:
    """`answer`: extracted, or None; `accepted`: the right answers; `reply`: the last reply's text.

    `payload` is the task's; `judge` the scorer agent, if configured. `messages`: the policy's whole conversation, with
    reasoning and tool calls (`sampler/messages/transcript.py`: bounded).
    """

    answer: str | None
    accepted: tuple[str, ...]
    query: str = ""
    reply: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()
    judge: Judge | None = None


@dataclass(frozen=True)
class Score:
    """`details` are stored with the record, for people. `others`: scores of other policies that took turns; a policy missing
    there gets the score of the task's own policy. `is_final`: the episode does not wait for feedback."""

    value: float
    details: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    is_final: bool = False


Scorer = Callable[[ScoringRequest], Awaitable[Score]]


@dataclass
class _Registered:
    scorer: Scorer
    needs_answer: bool
    needs_judge: bool
    home: Callable[..., Any]  # the function as its author wrote it
    has_worked: bool = False  # gave a score, in this process
    mistakes: int = 0  # before its first score

    def failure(self, text: str, *, is_mistake: bool) -> ScorerFailed | OwnCodeFailed:
        """The error to raise: repeated mistakes of a scorer that never worked are not an infrastructure failure."""
        self.mistakes += is_mistake
        if self.has_worked or self.mistakes < MAX_MISTAKES:
            return ScorerFailed(text)
        return OwnCodeFailed(f"{text} ({self.mistakes} times, and it never gave a score)")


_SCORERS: dict[str, _Registered] = {}


def register_scorer(name: str, *, needs_answer: bool = True, needs_judge: bool = False) -> Callable[[Scorer], Scorer]:
    """Decorator. `needs_answer=False` for scorers that judge the whole reply, even without an extracted answer.

    `needs_judge`: `request.judge` is never None; the only time-out of such a scorer is the judge's. Registering the same
    function again is harmless; another function under a known name is a ConfigError.
    """

    def register(scorer: Scorer) -> Scorer:
        known = _SCORERS.get(name)
        if known is not None and known.scorer is not scorer:
            raise ConfigError(f"scorer {name!r} is registered twice; give one of them another name")
        known_names.remember(name, needs_judge=needs_judge)
        _SCORERS[name] = _Registered(scorer, needs_answer, needs_judge, inspect.unwrap(scorer))
        return scorer

    return register


def import_scorers(modules: Sequence[str]) -> None:
    """Import modules that register scorers. Raises ConfigError."""
    for name in modules:
        import_own("scorer_modules", name)


def scorer_names() -> list[str]:
    return sorted(_SCORERS)


def default_scorer(configured: str | None, judge: Judge | None) -> str:
    """Default scorer: the configured one, else the judge if there is one, else an exact comparison."""
    return configured or ("exact_match" if judge is None else "agentcpm")


def require_scorer(name: str, judge: Judge | None = None) -> None:
    """Raises ConfigError for an unknown name, and for a scorer whose required judge is not configured."""
    if name not in _SCORERS:
        raise ConfigError(
            f"scorer {name!r} is unknown; expected one of {', '.join(scorer_names())}, "
            "or register it with @register_scorer in a module that scorer_modules names"
        )
    if judge is None and _SCORERS[name].needs_judge:
        raise ConfigError(f"scorer {name!r} needs a judge; set --agent_config_path to a file with a scorer_agent")


def scorer_needs_answer(name: str) -> bool:
    """False for a scorer that judges the whole reply. True for an unknown name: a user's own sampler may score by it."""
    return name not in _SCORERS or _SCORERS[name].needs_answer


async def score_answer(name: str, request: ScoringRequest, timeout_s: float = 120.0) -> Score:
    """Raises ConfigError for an unknown scorer, AgentFailed if no judge answered, ScorerFailed if the scorer fails, and
    OwnCodeFailed if it is not an async function, or makes only mistakes.

    Messages and details never contain the API keys of the judge's models.
    """
    require_scorer(name, request.judge)
    registered = _SCORERS[name]
    if request.answer is None and registered.needs_answer:
        return Score(0.0, explained(name, None, request.accepted, {"reason": no_answer(request.payload)}))
    keys = request.judge.keys() if request.judge else []
    try:
        async with asyncio.timeout(None if registered.needs_judge else timeout_s):
            score = await _called(name, registered, request)
    except TimeoutError as exc:
        raise ScorerFailed(f"scorer {name!r} gave no score within {timeout_s:g} s") from exc
    except (Exception, SystemExit) as exc:  # user code: any exception is a failure, not a score
        cause = cause_of(exc)
        if isinstance(cause, ScorerFailed | AgentFailed | OwnCodeFailed):
            raise cause from None
        text = f"scorer {name!r} crashed: {without(keys, told(cause, registered.home))}"
        raise registered.failure(text, is_mistake=isinstance(cause, MISTAKES)) from exc
    if not isinstance(score, Score) or not is_finite_number(score.value) or not isinstance(score.details, Mapping):
        found = without(keys, clipped(repr(score), MAX_SHOWN_CHARS))
        expected = f"expected Score(value=<finite number>, details={{…}}){definition_of(registered.home)}"
        is_mistake = not isinstance(score, Score)
        raise registered.failure(f"scorer {name!r} returned {found}; {expected}", is_mistake=is_mistake)
    registered.has_worked = True
    details = explained(name, request.answer, request.accepted, score.details)
    return replace(score, details=without(keys, details) if keys else details)


async def _called(name: str, registered: _Registered, request: ScoringRequest) -> Score:
    found = registered.scorer(request)
    if not inspect.isawaitable(found):
        raise OwnCodeFailed(
            f"scorer {name!r} is not an async function: write async def{definition_of(registered.home)}"
        )
    return await found


def is_finite_number(value: object) -> bool:
    """True for a number that fits into a double."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False
