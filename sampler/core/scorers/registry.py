"""Registers scorers by name and calls them: every call yields a number or `ScorerFailed`.

Promise: `details` of a score names the scorer, the found and the expected answer, and for our own scorers the reason. A missing
answer is score 0 with the reason "no answer". A scorer that crashes, hangs or returns no finite number is `ScorerFailed`, a
judge without a verdict `AgentFailed`: infrastructure failures, never score 0.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from sampler.core.api_models import Judge
from sampler.core.errors import AgentFailed, ScorerFailed, UnusableTask
from sampler.core.parsers.reasoning import behind_reasoning
from sampler.core.scorers.batches import MAX_BATCH_SIZE, Batches
from sampler.core.scorers.calling import Signature, Threads, call, called_with
from sampler.core.scorers.details import explained, no_answer
from sampler.core.time_limits import time_limit
from shared.documents import ToolCallResult
from shared.documents.scoring import WeightedScorer
from shared.errors import ConfigError, OwnCodeFailed
from shared.outside_text import clipped
from shared.redaction import without
from shared.scores import EXPECTED, real_number, usable_score
from shared.tasks import scorer_names as known_names
from shared.user_code.frames import cause_of, definition_of, told
from shared.user_code.loading import import_own

# Programming mistakes, which every episode would repeat. A single task's data may cause one of these types, too (KeyError is a
# LookupError), so a scorer is given up only after MAX_MISTAKES of them before its first score.
MISTAKES = (AttributeError, ImportError, LookupError, NameError, NotImplementedError, TypeError)
MAX_MISTAKES = 5  # before the scorer's first score
MAX_SHOWN_CHARS = 300  # shown of a scorer's invalid result
TIMEOUT_S = 120.0  # of a scorer without a judge

T = TypeVar("T")


@dataclass(frozen=True)
class ScoringRequest:
    """`answer`: extracted, or None; `accepted`: the right answers; `reply`: the last reply's text.
    `in_reasoning`: the prompt opened its reasoning.

    `payload` is the task's; `judge` the scorer agent, if configured. `messages`: the policy's whole conversation, with
    reasoning and tool calls (`sampler/core/rendering/transcript.py`: bounded). `tool_calls`: with results, errors and durations.
    `utterances`: what all seats said, in order, each with `seat`, `actor` and `content` (docs/bring/actors.md).
    """

    answer: str | None
    accepted: tuple[str, ...]
    query: str = ""
    reply: str = ""
    in_reasoning: bool = False
    payload: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()
    tool_calls: tuple[ToolCallResult, ...] = ()
    utterances: tuple[Mapping[str, str], ...] = ()
    judge: Judge | None = None

    @property
    def answer_text(self) -> str:
        """The last reply outside of its reasoning, where the answer is looked for."""
        return behind_reasoning(self.reply, in_reasoning=self.in_reasoning)


@dataclass(frozen=True)
class Score:
    """`details` are stored with the record, for people. `others`: scores of other policies that took turns; a policy missing
    there gets the score of the task's own policy. `actors`: of seats (docs/bring/actors.md), each trained by its own.
    `is_final`: the episode does not wait for feedback. `group_scorers`: which will add to it when the group is complete."""

    value: float
    details: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    is_final: bool = False
    actors: Mapping[str, float] = field(default_factory=dict)
    group_scorers: tuple[WeightedScorer, ...] = ()


@dataclass(frozen=True)
class GroupEpisode:
    """One scored episode of a group. `score`: without the group scorers. `reply`: the last one's text. `messages`: the policy's
    conversation, replies as they were sampled."""

    record: str
    score: float
    answer: str | None
    reply: str
    termination: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    tool_calls: tuple[ToolCallResult, ...] = ()
    in_reasoning: bool = False  # the prompt opened that of the last reply

    @property
    def answer_text(self) -> str:
        """The last reply outside of its reasoning."""
        return behind_reasoning(self.reply, in_reasoning=self.in_reasoning)


@dataclass(frozen=True)
class GroupRequest:
    """The scored episodes of one task, in the order of their slots; those that failed are not among them."""

    accepted: tuple[str, ...]
    query: str
    episodes: tuple[GroupEpisode, ...]
    payload: Mapping[str, Any] = field(default_factory=dict)
    judge: Judge | None = None


Scorer = Callable[..., Any]  # a Score or a number, of a group scorer a list of them; awaitable or not


@dataclass
class _Registered:
    scorer: Scorer
    needs_answer: bool
    needs_judge: bool
    home: Callable[..., Any]  # the function as its author wrote it
    signature: Signature
    is_of_group: bool = False
    threads: Threads = field(default_factory=Threads)
    batches: Batches | None = None  # it takes a list of requests
    has_worked: bool = False  # gave a score, in this process
    mistakes: int = 0  # before its first score

    def failure(self, text: str, *, is_mistake: bool) -> ScorerFailed | OwnCodeFailed:
        """The error to raise: repeated mistakes of a scorer that never worked are not an infrastructure failure."""
        self.mistakes += is_mistake
        if self.has_worked or self.mistakes < MAX_MISTAKES:
            return ScorerFailed(text)
        return OwnCodeFailed(f"{text} ({self.mistakes} times, and it never gave a score)")


_SCORERS: dict[str, _Registered] = {}


def register_scorer(
    name: str, *, needs_answer: bool = True, needs_judge: bool = False, batch_size: int | None = None
) -> Callable[[Scorer], Scorer]:
    """Decorator. `needs_answer=False` for scorers that judge the whole reply, even without an extracted answer.

    `needs_judge`: `request.judge` is never None; the only time-out of such a scorer is the judge's. `batch_size`: the function
    takes a list of at most so many requests, and returns a number, a Score or an exception for each. Registering the same
    function again is harmless; another function under a known name is a ConfigError.
    """
    if batch_size is not None and not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise ConfigError(f"scorer {name!r}: batch_size is {batch_size}; expected 1 to {MAX_BATCH_SIZE}")
    return _register(name, needs_answer=needs_answer, needs_judge=needs_judge, batch_size=batch_size)


def register_group_scorer(name: str, *, needs_judge: bool = False) -> Callable[[Scorer], Scorer]:
    """Decorator of a function that is given a whole group (`GroupRequest`) and returns a number or Score for each episode."""
    return _register(name, needs_answer=False, needs_judge=needs_judge, is_of_group=True)


def _register(
    name: str, *, needs_answer: bool, needs_judge: bool, is_of_group: bool = False, batch_size: int | None = None
) -> Callable[[Scorer], Scorer]:
    def register(scorer: Scorer) -> Scorer:
        known = _SCORERS.get(name)
        if known is not None and known.scorer is not scorer:
            raise ConfigError(f"scorer {name!r} is registered twice; give one of them another name")
        known_names.remember(name, needs_judge=needs_judge)
        home, signature = inspect.unwrap(scorer), Signature.of(scorer)
        made = _SCORERS[name] = _Registered(scorer, needs_answer, needs_judge, home, signature, is_of_group)
        if batch_size is not None:
            made.batches = Batches(partial(_batch_of, made), batch_size)
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


def is_group_scorer(name: str) -> bool:
    return name in _SCORERS and _SCORERS[name].is_of_group


def scorer_needs_answer(name: str) -> bool:
    """False for a scorer that judges the whole reply. True for an unknown name: a user's own sampler may score by it."""
    return name not in _SCORERS or _SCORERS[name].needs_answer


async def score_answer(name: str, request: ScoringRequest, timeout_s: float = TIMEOUT_S) -> Score:
    """Raises ConfigError for an unknown scorer, AgentFailed if no judge answered, ScorerFailed if the scorer fails, and
    OwnCodeFailed if it makes only mistakes.

    Messages and details never contain the API keys of the judge's models.
    """
    require_scorer(name, request.judge)
    registered = _SCORERS[name]
    if request.answer is None and registered.needs_answer:
        return Score(0.0, explained(name, None, request.accepted, {"reason": no_answer(request.payload)}))
    score = _checked(name, await _called(name, request, timeout_s), request.judge)
    registered.has_worked = True
    return replace(
        score, details=_shown(request.judge, explained(name, request.answer, request.accepted, score.details))
    )


async def score_group(name: str, request: GroupRequest, timeout_s: float = TIMEOUT_S) -> list[Score]:
    """A score for each of the request's episodes. Raises what `score_answer` raises."""
    require_scorer(name, request.judge)
    registered, expected = _SCORERS[name], len(request.episodes)
    values = await _called(name, request, timeout_s)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) != expected:
        shown = _shown(request.judge, clipped(repr(values), MAX_SHOWN_CHARS))
        text = f"group scorer {name!r} returned {shown}; expected a list of {expected} scores, one for each episode"
        raise registered.failure(f"{text}{definition_of(registered.home)}", is_mistake=True)
    scores = [_checked(name, one, request.judge) for one in values]
    registered.has_worked = True
    return [replace(one, details=_shown(request.judge, dict(one.details))) for one in scores]


async def _batch_of(registered: _Registered, requests: Sequence[ScoringRequest]) -> Any:
    async with time_limit(None if registered.needs_judge else TIMEOUT_S):
        return await called_with(registered.scorer, (list(requests),), {}, registered.threads)


async def _called(name: str, request: "ScoringRequest | GroupRequest", timeout_s: float) -> Any:
    registered = _SCORERS[name]
    try:
        if registered.batches is not None:  # its time begins with the batch
            return _value_of(await registered.batches.one(request))
        async with time_limit(None if registered.needs_judge else timeout_s):
            return await call(registered.scorer, registered.signature, request, registered.threads)
    except TimeoutError as exc:
        raise ScorerFailed(f"scorer {name!r} gave no score within {timeout_s:g} s") from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ScorerFailed(f"scorer {name!r} cancelled its own task{definition_of(registered.home)}") from exc
    except (Exception, SystemExit) as exc:  # user code: any exception is a failure, not a score
        cause = cause_of(exc)
        if isinstance(cause, ScorerFailed | AgentFailed | OwnCodeFailed | UnusableTask):
            raise cause from None
        text = f"scorer {name!r} crashed: {_shown(request.judge, told(cause, registered.home))}"
        raise registered.failure(text, is_mistake=isinstance(cause, MISTAKES)) from exc


def _value_of(outcome: Any) -> Any:
    """Raises the exception that a batch has for this request."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _checked(name: str, value: Any, judge: Judge | None) -> Score:
    """With floats. Raises ScorerFailed: what a function returns depends on the episode, and never ends a sampler."""
    score = value if isinstance(value, Score) else Score(value)
    if isinstance(score.details, Mapping):
        with contextlib.suppress(ValueError):
            return with_floats(score)
    shown, where = _shown(judge, clipped(repr(value), MAX_SHOWN_CHARS)), definition_of(_SCORERS[name].home)
    raise ScorerFailed(
        f"scorer {name!r} returned {shown}; expected {EXPECTED}, or Score(value=…, details={{…}}){where}"
    )


def with_floats(score: Score) -> Score:
    """The score with its numbers as floats, whatever real-number types they have. Raises ValueError for one that the trainer
    cannot use."""
    others = {name: usable_score(value) for name, value in score.others.items()}
    actors = {name: usable_score(value) for name, value in score.actors.items()}
    return replace(score, value=usable_score(score.value), others=others, actors=actors)


def _shown(judge: Judge | None, value: T) -> T:
    """Without the keys of the judge's models."""
    keys = judge.keys() if judge else []
    return without(keys, value) if keys else value


def is_finite_number(value: object) -> bool:
    """True for a real number of any type that fits into a double."""
    return real_number(value) is not None
