"""Scorers by name, and how one is called: the outcome of every call is a number, or `ScorerFailed`.

Promise: every score says who gave it, what was found and expected (`details`), and every one of our own scorers why; a missing
answer is score 0 with the reason "no answer"; a scorer that crashes, hangs or returns no finite number is
`ScorerFailed`, a judge that gives no verdict `AgentFailed`: infrastructure failures, and never score 0.
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

# Programming mistakes, which another episode would only repeat. Some of them may come from one task's data (KeyError is a
# LookupError): so it takes MAX_MISTAKES of them, and not one score before.
MISTAKES = (AttributeError, ImportError, LookupError, NameError, NotImplementedError, TypeError)
MAX_MISTAKES = 5  # of a scorer that has not given one score
MAX_SHOWN_CHARS = 300  # of what a scorer returned in place of a score


@dataclass(frozen=True)
class ScoringRequest:
    """`answer`: extracted, None when there was none; `accepted`: any of these is right; `reply`: the last reply's text.

    `payload` is the task's own, `judge` the scorer agent, where one is configured. `messages`: the whole conversation,
    what the policy was told and what it said, with reasoning and tool calls (`sampler/messages/transcript.py`: bounded).
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
    """`details` is stored with the record, for people. `others`: scores of other policies that took part; one that is not in
    it has the same as the task's own policy."""

    value: float
    details: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)


Scorer = Callable[[ScoringRequest], Awaitable[Score]]


@dataclass
class _Registered:
    scorer: Scorer
    needs_answer: bool
    needs_judge: bool
    home: Callable[..., Any]  # the function as its author wrote it
    has_worked: bool = False  # it gave a score, in this process
    mistakes: int = 0  # before that

    def failure(self, text: str, *, is_mistake: bool) -> ScorerFailed | OwnCodeFailed:
        """The error to raise: a scorer that has never worked and goes on making mistakes is no failure that passes."""
        self.mistakes += is_mistake
        if self.has_worked or self.mistakes < MAX_MISTAKES:
            return ScorerFailed(text)
        return OwnCodeFailed(f"{text} ({self.mistakes} times, and it never gave a score)")


_SCORERS: dict[str, _Registered] = {}


def register_scorer(name: str, *, needs_answer: bool = True, needs_judge: bool = False) -> Callable[[Scorer], Scorer]:
    """Decorator. `needs_answer=False` for scorers that judge the whole reply even where no answer was found.

    `needs_judge`: `request.judge` is never None; such a scorer has no time-out but the judge's own. Registering the same
    function again is harmless; another one under a known name is a ConfigError.
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
    """Of tasks that name none: the configured one, else the judge, where there is one, else an exact comparison."""
    return configured or ("exact_match" if judge is None else "agentcpm")


def require_scorer(name: str, judge: Judge | None = None) -> None:
    """Raises ConfigError for an unknown name, and for a scorer that needs a judge where there is none."""
    if name not in _SCORERS:
        raise ConfigError(
            f"scorer {name!r} is unknown; expected one of {', '.join(scorer_names())}, "
            "or register it with @register_scorer in a module that scorer_modules names"
        )
    if judge is None and _SCORERS[name].needs_judge:
        raise ConfigError(f"scorer {name!r} needs a judge; give --agent_config_path a file with a scorer_agent")


def scorer_needs_answer(name: str) -> bool:
    """False for a scorer that judges the whole reply. True for an unknown name: a sampler of its own may score by it."""
    return name not in _SCORERS or _SCORERS[name].needs_answer


async def score_answer(name: str, request: ScoringRequest, timeout_s: float = 120.0) -> Score:
    """Raises ConfigError for an unknown scorer, AgentFailed when no judge answered, ScorerFailed for one that fails, and
    OwnCodeFailed for one that is no async function, or has made nothing but mistakes.

    The keys of the judge's models are in no message and no details.
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
    except (Exception, SystemExit) as exc:  # a scorer is the user's code: what it raises is a failure, and no score
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
        raise OwnCodeFailed(f"scorer {name!r} is no async function: write async def{definition_of(registered.home)}")
    return await found


def is_finite_number(value: object) -> bool:
    """True for what a double can hold."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False
