"""The sampler process: named loops around one store and one engine pool.

    view     read the database's state: run, admission limit, served versions, engines
    work     free places ─▶ claim slots of a group ─▶ an episode task each
    renew    renew all leases of this process in one bulk update; a lost lease cancels its episode
    settle   settle groups that this or any other sampler completed
    beat     write heartbeat and counters

The first loop to fail ends the process; its leases expire and other samplers continue. An episode or a settlement that fails ends
itself alone (`shared/unforeseen.py`). SIGTERM drains: no new claims; episodes
may end within the grace time; the rest is released at once.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial

from sampler.core.api_models import Agents
from sampler.core.engines.pool.engines import Engines
from sampler.core.engines.pool.token_rate import TokenRate
from sampler.core.episode.episode import play
from sampler.core.episode.resources import shared_resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.episode.unforeseen import fail_claim
from sampler.core.service.claim_pace import pause_s, slots_at_once
from sampler.core.service.concurrency import Concurrency
from sampler.core.service.database_view import DatabaseView
from sampler.core.service.first_episodes import FirstEpisodes
from sampler.core.service.idle import doing_of
from sampler.core.service.kinds import SamplerKinds, new_episode
from sampler.core.service.loops import every, first_of, poll, wait_for
from sampler.core.service.playable import Playable
from sampler.core.service.process import ServiceProcess, service_process
from sampler.core.service.ruled_resources import RuledResources
from sampler.core.service.score_shares import ScoreShares
from sampler.core.service.settling import Settling
from sampler.core.service.tool_check import log_missing_tools
from sampler.core.settings.core_config import CoreConfig
from sampler.core.settlement.current_rules import CurrentRules
from sampler.core.tools import TokenOffsets
from shared.documents import Claim
from shared.documents.run import Worker
from shared.errors import LeaseLost
from shared.names import EVAL_SPLIT, FORK_SPLIT, TRAIN_SPLIT
from shared.processes.failure import failure_now
from shared.processes.signals import ending_signals
from shared.processes.waits import WAITED, Activity, Wait, waiting
from shared.store.heartbeats import WorkerHeartbeats
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from shared.unforeseen import bug_of, is_of_the_process

log = logging.getLogger(__name__)

RELEASE_S = 25.0  # the time limit of a release, and of a verb that is cancelled
COUNTED = ("episodes", "failed", "given_back", "awaiting_feedback")  # among what its heartbeats say
COUNTED_BY_ENGINES = ("cached_tokens", "prompt_tokens", "retries", "continuations")


async def run_service(config: CoreConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises ExceptionGroup when a loop fails."""
    kinds = SamplerKinds.of(config)
    async with service_process(config, "sampler") as process:
        rules = CurrentRules(process.store, config, process.worker)
        await SamplerService(process, await rules.starting_config(), kinds, rules).run()


class SamplerService:
    kind = "sampler"  # among the workers of the run
    _plays_elsewhere = False

    def __init__(
        self, process: ServiceProcess, config: CoreConfig, kinds: SamplerKinds, rules: CurrentRules | None = None
    ) -> None:
        """`config`: under the run's `rules`; None: the rules are those that these settings declare."""
        store, worker = self._store, self._worker = process.store, process.worker
        self._config = config
        self._kinds = kinds
        self._activity = Activity()
        self._heartbeats = WorkerHeartbeats(store.workers)
        self._episodes: dict[asyncio.Task[float | None], Claim] = {}
        self._stop = asyncio.Event()
        self._place_free, self._view_updated = asyncio.Event(), asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._concurrency = Concurrency(
            config.queue.max_concurrent_episodes, adaptive=config.queue.adaptive_concurrency
        )
        self._first = FirstEpisodes()
        self._rewards: deque[float] = deque(maxlen=256)
        self._token_rate = TokenRate()
        self._eval_looked_at = 0.0
        self._engines = Engines(store, process.client, config)
        template = self._engines.policy_clients[config.policy].template
        agents = Agents.from_file(config.scoring.agent_config_path, TokenOffsets(template), store.images.read)
        agents.require(config.prompt.context_summary)
        self._resources = shared_resources(store, config, worker, self._engines, agents)
        self._lease_s, self._renew_s = config.queue.lease_s, config.queue.renew_s
        self._playable = Playable(kinds, config, agents.judge, self._resources.tool_servers)
        self._shares = ScoreShares(config)
        self._rules = rules or CurrentRules(store, config, worker)
        self._view = DatabaseView(store, config, self._engines, self._resources, self._rules)
        self._ruled = RuledResources(self._resources, self._engines, kinds)
        self._rules.prepare = self._ruled.prepare
        observers = (self._rewards.extend, self._shares.settled)
        self._settling = Settling(store, worker, config, self._rules, agents.judge, self._resources.bugs, *observers)

    async def run(self) -> None:
        with self._activity.of_process():
            await self._run()

    async def _run(self) -> None:
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        demands = await self._store.questions.open_demands(self._config.policy)
        self._playable.check(demands)
        await self._rules.begin()
        await self._resources.opened.begin()
        agents = self._resources.agents.settings
        settings = self._config.snapshot() | ({"agents": dict(agents)} if agents else {})
        identity = await self._store.settings.keep(self.kind, settings, self._worker)
        await self._store.runs.note_settings(self.kind, identity)
        await self._refresh()
        signals, queue = self._store.signals, self._config.queue

        def longest_pause_s() -> float:
            return self._view.longest_pause_s(playing=self._playing > 0)

        loops = {
            "renew": every(self._renew, self._renew_s),
            "beat": every(self._beat, queue.heartbeat_s),
            "rules": poll(PollTimer(signals, [Signal.RUN], queue.heartbeat_s), self._rules.refresh),
            "view": poll(PollTimer(signals, tuple(Signal), queue.poll_s), self._refresh, longest_pause_s),
        }
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(loop, name=name) for name, loop in loops.items()]
                helpers.append(group.create_task(self._settling.run(), name="settle"))
                naming = [one for one in demands if self._kinds.use_tools(one.sampler)]
                if naming:
                    helpers.append(group.create_task(log_missing_tools(self._resources, naming), name="tools"))
                await self._work(group)
                await self._drain()
                for helper in helpers:
                    helper.cancel()
        finally:
            await self._engines.close()
            await self._resources.close()
            await self._store.workers.leave(self._worker, failure_now())

    async def _refresh(self) -> None:
        await self._view.refresh(playing=self._playing > 0)
        if self._concurrency.update(self._view.load_report(), self._playing) > self._playing:
            self._place_free.set()
        self._view_updated.set()

    @property
    def _playing(self) -> int:
        return len(self._episodes)

    # ------------------------------------------------------------------ claim

    async def _work(self, group: asyncio.TaskGroup) -> None:
        while not self._stop.is_set():
            self._first.check()
            free = self._concurrency.limit - len(self._episodes)
            if free <= 0:
                self._place_free.clear()
                await wait_for(self._place_free, 1.0)
                continue
            self._view_updated.clear()
            claims = await self._claim(slots_at_once(free))
            if claims:
                await self._start(group, claims)
                await wait_for(self._stop, pause_s(free, self._concurrency.limit))
            else:
                await first_of(self._stop.wait(), self._view_updated.wait())

    async def _claim(self, most: int = 1) -> list[Claim]:
        """Claim evaluation first: it is small, and publishing results for its version waits for it."""
        ready = self._engines.ready() and self._resources.tool_traffic.has_room()
        if self._rules.number is None or self._view.state.paused or not ready:
            return []
        if time.monotonic() - self._eval_looked_at > self._config.queue.poll_s:
            for split in (EVAL_SPLIT,) if self._plays_elsewhere else (EVAL_SPLIT, FORK_SPLIT):
                claims = await self._claim_of(split, None, most)
                if claims:
                    return claims
            self._eval_looked_at = time.monotonic()
        return (
            []
            if self._view.state.seq_limit == 0
            else await self._claim_of(TRAIN_SPLIT, self._view.state.seq_limit, most)
        )

    async def _claim_of(self, split: str, seq_limit: int | None, most: int) -> list[Claim]:
        claims = await self._store.tasks.claim_slots(
            self._worker,
            policy=self._config.policy,
            split=split,
            lease_s=self._lease_s,
            seq_limit=seq_limit,
            served_versions=self._engines.served_versions(),
            max_failures=self._config.queue.max_failures,
            without=self._playable.left,
            unconfirmed=self._plays_elsewhere,
            rules=self._rules.number,
            of_rules=self._rules.claimable,
            full_environments=self._resources.opened.full_environments(),
            most=most,
        )
        if claims:
            task = claims[0].task
            if self._playable.excludes(task.id, task.payload) or not await self._rules.plays(task):
                for claim in claims:
                    await self._give_back(claim)
                return []
        return claims

    async def _start(self, group: asyncio.TaskGroup, claims: Sequence[Claim]) -> None:
        unstarted = deque(claims)
        try:
            while unstarted:
                sampler = await self._opened(unstarted[0])
                claim = unstarted.popleft()
                if sampler is not None:
                    task = group.create_task(play(sampler), name=f"episode {claim.record_id}")
                    self._episodes[task] = claim
                    task.add_done_callback(partial(self._ended, sampler))
        finally:
            for claim in unstarted:  # this process ends
                await self._give_back(claim)

    async def _opened(self, claim: Claim) -> AsyncSampler | None:
        """None: it met a bug, which is counted."""
        try:
            return new_episode(self._kinds.of_task(claim.task.payload.sampler), self._ruled.of(claim.task), claim)
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):
                raise
            bug = bug_of(exc)
            await fail_claim(self._resources, claim, bug)
            self._counts["failed"] += 1
            self._first.failed(claim.task, bug.error, wrong=True)
            return None

    def _ended(self, sampler: AsyncSampler, task: "asyncio.Task[float | None]") -> None:
        self._episodes.pop(task)
        self._place_free.set()
        if not sampler.episode.leaves_group_open:
            self._settling.complete(sampler.task.id)
        if task.cancelled() or task.exception() is not None:
            self._counts["cancelled"] += 1
        elif (score := task.result()) is None:
            self._counts[self._first.unscored(sampler)] += 1
        else:
            self._counts["episodes"] += 1
            self._first.scored(sampler.task.split)
            self._shares.scored(sampler, score)
            if not sampler.episode.awaits_group and sampler.task.split != FORK_SPLIT:  # those are of chosen turns
                self._rewards.append(score)

    async def _drain(self) -> None:
        """Let episodes in flight end within the grace time; then cancel them, which releases their slots."""
        log.info("draining episodes=%d grace_s=%g", len(self._episodes), self._config.queue.grace_s)
        if self._episodes:
            end = f"they end, for {self._config.queue.grace_s:g} s at most (grace_s)"
            with waiting(Wait("its episodes", f"it stops, and {len(self._episodes)} were being played", end)):
                await asyncio.wait(self._episodes, timeout=self._config.queue.grace_s)
        late = dict(self._episodes)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=RELEASE_S)
        for claim in late.values():  # again: a task that had not started could not release its slot
            await self._give_back(claim)
        await self._settling.settle_all()
        log.info("drained released=%d", len(late))

    async def _give_back(self, claim: Claim) -> None:
        """Release the slot of an episode that has not started."""
        with contextlib.suppress(LeaseLost):
            await self._store.tasks.release_slot(claim)

    # ------------------------------------------------------------------ the other loops

    async def _renew(self) -> None:
        for claim in await self._store.tasks.renew_leases(list(self._episodes.values()), self._config.queue.lease_s):
            for task, held in list(self._episodes.items()):
                if held == claim:
                    log.warning("lease lost record=%s", claim.record_id)
                    task.cancel()

    async def _beat(self) -> None:
        stats = self._engines.stats()
        self._activity.set("draining" if self._stop.is_set() else await self._doing())
        await self._heartbeats.write(
            Worker(
                id=self._worker,
                kind=self.kind,
                host=socket.gethostname(),
                pid=os.getpid(),
                doing=str(self._activity),
                heartbeat_s=self._config.queue.heartbeat_s,
                alarms=self._alarms(),
                stats={
                    **{name: self._counts[name] for name in COUNTED},
                    WAITED: self._activity.waited_s,
                    "settled": self._settling.settled,
                    "bugs": self._resources.bugs.count,
                    "episodes_running": self._playing,
                    "episodes_at_most": self._concurrency.limit,
                    "sessions_opening": self._resources.tool_traffic.opening,
                    "tokens": stats.output_tokens,
                    "tokens_per_s": round(self._token_rate.per_s(stats.output_tokens), 1),
                    **{name: getattr(stats, name) for name in COUNTED_BY_ENGINES},
                    "shares": self._shares.stats(),
                    "branch_causes": dict(self._resources.branch_causes),
                    "parents": dict(self._resources.parent_kinds),
                    "reward_mean": round(sum(self._rewards) / len(self._rewards), 4) if self._rewards else None,
                },
            )
        )

    async def _doing(self) -> str | Wait:
        return await doing_of(self._view.state, self._view.outlook, idle=not self._playing)

    def _alarms(self) -> list[str]:
        parts = (
            self._first,
            self._shares,
            self._resources,
            self._playable,
            self._engines,
            self._settling,
            self._rules,
        )
        return [alarm for part in parts for alarm in part.alarms()]
