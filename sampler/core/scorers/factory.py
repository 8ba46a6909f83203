"""AgentRL-style scorers (AgentCPM): registered with a factory, called with the answer and the ground truth.

    async def mine(model_answer: str, ground_truth: dict, scorer_agent_config: dict) -> float: ...

    MCPScorerFactory.register_scorer("mine", mine)

The third parameter is optional. A function of one parameter takes a `ScoringRequest`, as with `@register_scorer`.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from sampler.core.scorers.registry import Score, Scorer, ScoringRequest, register_scorer
from shared.errors import ConfigError

Wanted = Callable[..., Awaitable[Score | float]]


class MCPScorerFactory:
    _wrapped: dict[tuple[str, Wanted], Scorer] = {}  # noqa: RUF012  # so that registering the same again is harmless

    @classmethod
    def register_scorer(cls, name: str, scorer_func: Wanted) -> None:
        """Raises ConfigError for a name in use, and for anything but an async function of one to three parameters."""
        wrapped = cls._wrapped.get((name, scorer_func)) or _as_scorer(name, scorer_func)
        register_scorer(name)(wrapped)
        cls._wrapped[name, scorer_func] = wrapped


def _as_scorer(name: str, given: Wanted) -> Scorer:
    parameters = inspect.signature(given).parameters if callable(given) else {}
    if not inspect.iscoroutinefunction(given) or not 1 <= len(parameters) <= 3:
        raise ConfigError(
            f"scorer {name!r}: {given!r} does not fit; expected an async function of (ScoringRequest), "
            "(model_answer, ground_truth) or (model_answer, ground_truth, scorer_agent_config)"
        )

    @functools.wraps(given)
    async def scorer(request: ScoringRequest) -> Any:
        result: Any = await given(*_arguments(request, len(parameters)))
        return result  # the caller rejects what is no score

    return scorer


def _arguments(request: ScoringRequest, count: int) -> tuple[Any, ...]:
    """`scorer_agent_config` is the file's section, including its models' API keys; empty without one."""
    if count == 1:
        return (request,)
    truth = {"query": request.query, "answer": request.accepted[0] if request.accepted else ""}
    config = request.judge.plain_config() if request.judge else {}
    return (request.answer or "", truth, config)[:count]
