"""Calls a scorer as its author wrote it: with the request or with keywords; async or not; its result a Score or a number.

    async def f(request: ScoringRequest) -> Score          the request (GroupRequest of a group scorer)
    def f(reply, answer, difficulty=1) -> float             by name: what the request has, then the task's own fields
    def f(reply, **task) -> float                           and the rest of the task's own fields

A function that is not async runs in a thread, so that it does not hold up other episodes.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.core.errors import ScorerFailed, UnusableTask
from sampler.core.time_limits import queued
from shared.processes.waits import Wait

OF_REQUEST = (
    "answer",
    "accepted",
    "query",
    "reply",
    "answer_text",
    "payload",
    "messages",
    "tool_calls",
    "utterances",
    "judge",
    "episodes",
)
METADATA = "metadata"
KEYWORDS = (*OF_REQUEST, METADATA)
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MOST_THREADS = 32  # of one scorer
MOST_WAIT_S = 600.0  # for one of them
_TAKES_A_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Signature:
    """`takes_request`: the first parameter is the request; `first` is its name. `names`: the parameters that are filled by name,
    and whether they have a default. `takes_rest`: what is left of the task's own fields goes into `**`."""

    takes_request: bool
    names: Mapping[str, bool]
    takes_rest: bool
    first: str = ""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Signature":
        parameters = _parameters(function)
        takes_request = bool(parameters) and parameters[0].name not in KEYWORDS and parameters[0].kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )  # fmt: skip
        named = [one for one in parameters[takes_request:] if one.kind in _TAKES_A_NAME]
        return cls(
            takes_request,
            {one.name: one.default is not inspect.Parameter.empty for one in named},
            any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters),
            parameters[0].name if takes_request else "",
        )

    def keywords(self, request: Any) -> dict[str, Any]:
        """Raises UnusableTask for a parameter that the task has no value for."""
        payload = request.payload
        own = dict(payload.get(METADATA) or {})
        known = own | {name: payload[name] for name in payload if name not in KEYWORDS}
        known |= {name: getattr(request, name) for name in OF_REQUEST if hasattr(request, name)} | {METADATA: own}
        missing = [name for name, has_default in self.names.items() if name not in known and not has_default]
        if missing:
            raise UnusableTask(
                f'the scorer asks for {missing[0]!r}, which the task does not have; expected it under "metadata" of the task\'s '
                f"line (it has {', '.join(sorted(own)) or 'nothing'}), or a default"
            )
        taken = {*self.names, self.first}
        rest = {name: own[name] for name in own if name not in taken} if self.takes_rest else {}
        return rest | {name: known[name] for name in self.names if name in known}


class Threads:
    """Where a scorer runs that is not async: at most `most` calls of it at once. A call that hangs keeps its place until it
    ends, and so keeps other calls of the same scorer waiting, but no others. Nothing keeps the process from ending."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self._places: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def run(self, work: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        if self._places is None or self._places[0] is not loop:
            self._places = loop, asyncio.Semaphore(self._most)
        places = self._places[1]
        await self._wait(places)
        answer: asyncio.Future[Any] = loop.create_future()

        def told(result: Any, error: BaseException | None) -> None:
            places.release()
            if answer.done():  # its caller has given up: it took too long
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def in_thread() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as exc:  # noqa: BLE001 - the caller raises it, as if it had called the function itself
                error = RuntimeError("StopIteration") if isinstance(exc, StopIteration) else exc
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(told, result, error)

        threading.Thread(target=in_thread, name="scorer", daemon=True).start()
        return await answer

    async def _wait(self, places: asyncio.Semaphore) -> None:
        """For a place. It is not the call's time, but has an end: calls that hang never give theirs back."""
        try:
            end = f"a call ends, for {MOST_WAIT_S:g} s at most"
            wait = Wait("a scorer's thread", f"{self._most} calls of scorers run", end)
            async with queued(wait), asyncio.timeout(MOST_WAIT_S):
                await places.acquire()
        except TimeoutError as exc:
            raise ScorerFailed(
                f"no thread for the scorer within {MOST_WAIT_S:g} s: {self._most} calls of it run; bound what they wait for"
            ) from exc


async def call(function: Callable[..., Any], signature: Signature, request: Any, threads: Threads) -> Any:
    """What the function returns. Raises ScorerFailed, UnusableTask, and what the function raises."""
    positional = (request,) if signature.takes_request else ()
    return await called_with(function, positional, signature.keywords(request), threads)


async def called_with(
    function: Callable[..., Any], positional: Sequence[Any], keywords: Mapping[str, Any], threads: Threads
) -> Any:
    if is_async(function):
        return await function(*positional, **keywords)
    result = await threads.run(lambda: function(*positional, **keywords))
    return await result if inspect.isawaitable(result) else result


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The function's own; of a decorator's `(*args, **kwargs)` those of what it wraps."""
    own = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    passes_on = own and all(one.kind in _ANY for one in own)
    return list(inspect.signature(function).parameters.values()) if passes_on else own


def is_async(function: Callable[..., Any]) -> bool:
    """Of an object with `__call__`, that method counts."""
    method = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(method)
