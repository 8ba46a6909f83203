"""Group scorers at work: a completed group is scored as a whole, once, before it is settled.

    claimed for settlement ─▶ begin ─▶ each group scorer ─▶ keep: the slots' scores ─▶ settle
                                └─ a scorer or its judge fails ─▶ again after a delay; after max_failures the group is abandoned

Which group scorers a group needs stands in its slots, as its episodes ended (`Slot.group_scorers`): every sampler sees the same.

Several groups are scored at once, since judges take their time, while other groups are settled. The lease is renewed meanwhile. A
failure is never a number. Held-out groups are not scored here: what their episodes got on their own counts.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

from sampler.core.api_models import Judge
from sampler.core.errors import AgentFailed, ScorerFailed, UnusableTask
from sampler.core.rendering.reply_message import words_of
from sampler.core.rendering.transcript import Transcript, joined
from sampler.core.retry_delay import retry_delay_s
from sampler.core.scorers.registry import (
    GroupEpisode,
    GroupRequest,
    Score,
    is_finite_number,
    require_scorer,
    score_group,
)
from sampler.core.scorers.scored_text import NOTHING, ScoredText
from sampler.core.scorers.weighted import field_name, metric_name, weighted_sum
from sampler.core.settings.core_config import CoreConfig
from sampler.core.time_limits import time_limit
from shared.documents import DispatchedSamplingTask, Record, Slot, Task
from shared.documents.scoring import GroupScore, WeightedScorer
from shared.documents.states import BranchCause, SlotStatus
from shared.errors import ConfigError, DoesNotFit, MalformedDocument
from shared.outside_text import clipped
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.tokens.flatten import answered
from shared.unforeseen import Bugs, bug_of, is_of_the_process

log = logging.getLogger(__name__)

MOST_AT_ONCE = 8  # groups of one process
LEASE_S = 30.0
RENEW_S = 10.0
MAX_REASON_CHARS = 500
MOST_TOLD = 3
TOLD_S = 600.0  # how long a failure is an alarm
MOST_FAILING = 100
MOST_UNKNOWN = 100
MOST_METRICS = 20
GROUP_METRICS = "group_metrics"  # among a score's details: numbers about the judging itself

Settle = Callable[[Task], Awaitable[None]]


class GroupScoring:
    """`settle`: what is done with a group that has its scores, or is given up. `bugs`: those of the process."""

    def __init__(
        self,
        store: Store,
        worker: str,
        config: CoreConfig,
        judge: Judge | None,
        settle: Settle,
        bugs: Bugs | None = None,
    ) -> None:
        self._store, self._worker, self._config, self._judge, self._settle = store, worker, config, judge, settle
        self._bugs = bugs or Bugs()
        self._running: set[asyncio.Task[None]] = set()
        self._unknown: dict[str, str] = {}  # by group scorer: what waits for another sampler
        self._failing: dict[str, tuple[float, str]] = {}  # by group: when it failed here, and why

    @property
    def left(self) -> Sequence[str] | None:
        """Group scorers whose groups are not claimed: those that are unknown here; None: all, there is no place."""
        return None if len(self._running) >= MOST_AT_ONCE else list(self._unknown)

    def alarms(self) -> list[str]:
        recent = time.monotonic() - TOLD_S
        failing = [text for at, text in self._failing.values() if at > recent]
        return [*self._unknown.values(), *failing[-MOST_TOLD:]]

    def awaits(self, task: Task) -> bool:
        """Whether group scorers have to score the group before it is settled: what its episodes said when they ended."""
        return not task.group_scores and given_up(task) is None and bool(_group_scorers_of(task))

    def start(self, group: asyncio.TaskGroup, task: Task, ended: Callable[[], None]) -> None:
        """Score a group that this process has claimed, in a task of its own."""
        running = group.create_task(self.score(task), name=f"group {task.id}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(lambda _: ended())

    async def score(self, task: Task) -> None:
        """Score the group and settle it. A bug fails this attempt alone."""
        try:
            await self._scored(task)
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):
                raise
            self._bugs.met("group scoring", task.id, bug_of(exc))  # its lease ends, and another attempt begins

    async def _scored(self, task: Task) -> None:
        attempt = await self._begun(task)
        if attempt is None:
            return
        try:
            with waiting(self._wait(task, attempt), inside=True):
                async with self._renewed(task.id, attempt), time_limit(self._config.queue.episode_timeout_s):
                    scores = await self._all(task)
            stored = await self._store.group_scores.keep(task, attempt, scores, _totals(task, scores))
        except UnusableTask as exc:
            await self._failed(task, attempt, str(exc))
        except ConfigError as exc:  # a scorer that another sampler may know
            log.error("%s", exc)
            await self._postpone(task.id, attempt)
        except (AgentFailed, ScorerFailed, DoesNotFit, TimeoutError) as exc:
            text = f"no scores within episode_timeout_s = {self._config.queue.episode_timeout_s:g} s"
            await self._failed(task, attempt, text if isinstance(exc, TimeoutError) else str(exc))
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):  # another sampler may begin at once
                await asyncio.shield(self._postpone(task.id, attempt))
                raise
            bug = bug_of(exc)
            self._bugs.met("group scoring", task.id, bug)
            await self._failed(task, attempt, bug.error)
        else:
            self._failing.pop(task.id, None)
            if stored is not None:
                await self._settle(stored)

    async def _begun(self, task: Task) -> int | None:
        """The attempt's number; None: another sampler has the group. Cancelled after its write, it frees the group at once."""
        beginning = asyncio.ensure_future(self._store.group_scores.begin(task, self._worker))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            attempt = await beginning
            if attempt is not None:
                await self._postpone(task.id, attempt)
            raise

    def _wait(self, task: Task, attempt: int) -> Wait:
        scorers = ", ".join(scorer.name for scorer in _group_scorers_of(task))
        limit = f"for {self._config.queue.episode_timeout_s:g} s at most (episode_timeout_s)"
        return Wait(
            f"the scores of group {task.id}", f"{scorers} (attempt {attempt}) has not answered", f"it does, {limit}"
        )

    async def _all(self, task: Task) -> list[GroupScore]:
        """Raises ConfigError for a scorer that is not known here."""
        for weighted in _group_scorers_of(task):
            try:
                require_scorer(weighted.name, self._judge)
            except ConfigError as exc:
                if len(self._unknown) < MOST_UNKNOWN:
                    self._unknown[weighted.name] = f"group {task.id} and others like it wait for another sampler: {exc}"
                raise
        slots, episodes = await self._episodes(task)
        return [await self._one(task, weighted, slots, episodes) for weighted in _group_scorers_of(task)]

    async def _one(
        self, task: Task, weighted: WeightedScorer, slots: Sequence[Slot], episodes: tuple[GroupEpisode, ...]
    ) -> GroupScore:
        request = GroupRequest(
            accepted=task.payload.accepted,
            query=task.payload.query,
            episodes=episodes,
            payload=task.payload.model_dump(mode="json"),
            judge=self._judge,
        )
        scores = dict(zip((slot.traj_id for slot in slots), await score_group(weighted.name, request), strict=True))
        by_slot: list[Score | None] = [scores.get(slot.traj_id) for slot in task.slots]
        metric = metric_name(weighted.name)
        return GroupScore(
            scorer=weighted.name,
            metric=metric,
            weight=weighted.weight,
            values=[None if one is None else float(one.value) for one in by_slot],
            reasons=[None if one is None else _reason(one) for one in by_slot],
            metrics={f"{metric}_{name}": value for name, value in _group_metrics(scores.values()).items()},
        )

    async def _episodes(self, task: Task) -> tuple[list[Slot], tuple[GroupEpisode, ...]]:
        """Read from the documents alone, so that any sampler may score any group. An episode that cannot be read is left out
        here, as settlement will leave it out."""
        slots = [slot for slot in task.slots if slot.status is SlotStatus.SCORED and slot.record_id is not None]
        pairs: list[tuple[Slot, GroupEpisode]] = []
        for slot in slots:
            name = str(slot.record_id)
            try:
                records = await self._store.records.get_many([name])
                dispatches = await self._store.records.dispatches_of([name])
            except MalformedDocument as exc:
                await self._store.malformed.note(exc)
                continue
            if name in records:
                pairs.append((slot, _episode(records[name], slot, dispatches[name])))
        return [slot for slot, _ in pairs], tuple(episode for _, episode in pairs)

    @contextlib.asynccontextmanager
    async def _renewed(self, task_id: str, attempt: int) -> AsyncIterator[None]:
        async def renew() -> None:
            while await self._store.group_scores.renew(task_id, attempt, LEASE_S):  # noqa: ASYNC110 - no event: a period
                await asyncio.sleep(RENEW_S)

        renewing = asyncio.create_task(renew(), name=f"lease of group {task_id}")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _failed(self, task: Task, attempt: int, error: str) -> None:
        failures, most = task.scoring.failures if task.scoring is not None else 0, self._config.queue.max_failures
        self._failing.pop(task.id, None)  # it goes to the end
        while len(self._failing) >= MOST_FAILING:
            self._failing.pop(next(iter(self._failing)))
        text = f"group {task.id} was not scored ({failures + 1} of {most}): {error}"
        self._failing[task.id] = time.monotonic(), text
        log.warning("%s", text)
        delay_s = retry_delay_s(self._config, failures)
        now = await self._store.group_scores.postpone(
            task.id, attempt, self._worker, delay_s=delay_s, error=error, max_failures=most
        )
        if now is not None and given_up(now) is not None:
            self._failing.pop(task.id)
            await self._settle(now)

    async def _postpone(self, task_id: str, attempt: int) -> None:
        await self._store.group_scores.postpone(task_id, attempt, self._worker, delay_s=0.0)


def given_up(task: Task) -> str | None:
    """Why a group is abandoned without group scores; None: it is not."""
    if task.scoring is None or not task.scoring.given_up:
        return None
    return f"its group scorer failed {task.scoring.failures} times: {task.scoring.error}"


def _group_scorers_of(task: Task) -> list[WeightedScorer]:
    """The group scorers that its scored episodes still need, each once."""
    of_slots = [slot.group_scorers for slot in task.slots if slot.status is SlotStatus.SCORED]
    return list({one.name: one for weighted in of_slots for one in weighted}.values())


def _totals(task: Task, scores: Sequence[GroupScore]) -> dict[int, float]:
    """{traj_id: the slot's own score and the weighted ones of its group}. Raises ScorerFailed if one is not finite."""
    return {
        slot.traj_id: weighted_sum(
            [(1.0, slot.score), *((one.weight, one.values[slot.traj_id] or 0.0) for one in scores)]
        )
        for slot in task.slots
        if slot.status is SlotStatus.SCORED and slot.score is not None
    }


def _episode(record: Record, slot: Slot, dispatches: Sequence[DispatchedSamplingTask]) -> GroupEpisode:
    own = [d for d in answered(dispatches) if record.includes(d.id) and d.policy in (None, record.policy)]
    threads: dict[str | None, Transcript] = {}
    for dispatch in own:
        assert dispatch.response is not None, "it is answered"
        spoken = {"role": "assistant", "content": dispatch.response.text}
        transcript = threads.setdefault(dispatch.thread, Transcript())
        transcript.received(dispatch.messages, restart=dispatch.branch_cause is BranchCause.CONTEXT_POLICY)
        transcript.replied(spoken, frozenset({words_of(spoken), words_of(dispatch.response.message)}))
    last = ScoredText.of_reply(own[-1]) if own else NOTHING
    return GroupEpisode(
        record=record.id,
        score=slot.score or 0.0,
        answer=record.answer,
        reply=last.text,
        in_reasoning=last.in_reasoning,
        termination=record.termination,
        messages=joined(list(threads.values())),
        tool_calls=tuple(call for dispatch in own for call in dispatch.tool_calls),
    )


def _reason(score: Score) -> str | None:
    reason = score.details.get("reason")
    if not isinstance(reason, str):
        return None
    return clipped(reason.encode("utf-8", "replace").decode().replace("\0", "�"), MAX_REASON_CHARS)


def _group_metrics(scores: Iterable[Score]) -> dict[str, float]:
    """Those that the first episode with some has: they are the group's."""
    metrics = next((one for score in scores if isinstance(one := score.details.get(GROUP_METRICS), Mapping)), {})
    named = {field_name(str(name)): float(value) for name, value in metrics.items() if is_finite_number(value)}
    return dict(list(named.items())[:MOST_METRICS])
