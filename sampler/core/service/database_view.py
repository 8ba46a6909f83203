"""What a sampler has read of the database: whether it may claim, up to which task, and what it waits for."""

from sampler.core.engines.pool.engines import Engines
from sampler.core.episode.resources import Resources
from sampler.core.service.concurrency import LoadReport
from sampler.core.service.idle import DatabaseState, engine_wait, pause_wait, rules_wait, tools_wait
from sampler.core.settings.core_config import CoreConfig
from sampler.core.settlement.current_rules import CurrentRules
from shared.documents.run import Run
from shared.documents.states import RunState
from shared.errors import MalformedDocument
from shared.processes.waits import Wait
from shared.store import Store
from shared.store.malformed import log_once
from shared.store.outlook import Outlook
from shared.store.poll_timer import LONGEST_S
from shared.tasks.admission import seq_limit

ENGINES_REPORT_S = 1.0  # a keeper's interval


class DatabaseView:
    """`state`: as of the last `refresh`."""

    def __init__(
        self, store: Store, config: CoreConfig, engines: Engines, resources: Resources, rules: CurrentRules
    ) -> None:
        self.state = DatabaseState()
        self._store, self._config = store, config
        self._engines, self._resources, self._rules = engines, resources, rules
        self._outlook: Outlook | None = None
        self._engine_mark = (0.0, 0)  # seconds and tokens of our requests at the last report

    def longest_pause_s(self, *, playing: bool) -> float:
        """Between two refreshes. Engines report their load, and tool servers free places, without a signal."""
        if not self._resources.tool_traffic.has_room():
            return self._config.queue.poll_s
        return ENGINES_REPORT_S if playing else LONGEST_S

    async def refresh(self, *, playing: bool = True) -> None:
        """Of a run that stays paused, and in which this process plays nothing, its document alone is read."""
        self._outlook = None
        try:
            run = await self._store.runs.get()
        except MalformedDocument as exc:  # the run may be paused: claim nothing until the document is repaired
            log_once(str(exc))
            self.state = DatabaseState(paused=True, doing=Wait("the run's document", str(exc), "it is repaired"))
            return
        paused = run is None or run.state is RunState.PAUSED
        if paused and self.state.paused and not playing:
            self.state = DatabaseState(paused, doing=pause_wait(self._store.run))
            return
        await self._engines.refresh()
        await self._resources.opened.refresh()
        limit, doing = await self._seq_limit(run)
        if limit != 0:
            self._engines.check_truncation(self._rules.config)
        doing = doing if self._engines.ready() else engine_wait(await self._store.services.all())
        away = self._resources.tool_traffic.away()
        if away:
            doing = tools_wait([traffic.server.name for traffic in away])
        if self._rules.number is None:
            doing = rules_wait(self._rules.alarms())
        self.state = DatabaseState(paused, limit, pause_wait(self._store.run) if paused else doing)

    async def outlook(self) -> Outlook:
        """Of the run, read once after each refresh: every change of tasks is followed by one."""
        if self._outlook is None:
            self._outlook = await self._store.outlook.of_run()
        return self._outlook

    async def _seq_limit(self, run: Run | None) -> tuple[int | None, str | Wait]:
        """The admission limit, and its reason."""
        if self._config.queue.open_all_tasks:
            return None, "sampling without a gate"
        return await seq_limit(self._store, self._rules.config.trained_policies, run.admission if run else {})

    def load_report(self) -> LoadReport:
        """The latest reports of the engines that are up, and how long our own requests took since the last call."""
        up, stats = self._engines.up(), self._engines.stats()
        seconds, tokens = stats.engine_s - self._engine_mark[0], stats.output_tokens - self._engine_mark[1]
        self._engine_mark = (stats.engine_s, stats.output_tokens)
        return LoadReport(
            stamp=tuple(service.heartbeat for service in up),
            running=sum(service.running for service in up),
            waiting=sum(service.waiting for service in up),
            capacity=sum(service.capacity for service in up),
            token_usage=max((service.token_usage for service in up), default=0.0),
            token_latency_s=seconds / tokens if tokens else None,
        )
