"""The live display: one screen on a terminal, otherwise plain lines (one per step and event)."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shared.processes.waits import WAITED, Activity, as_clock
from tandem.launch.children import Child
from tandem.launch.errors import Repeats
from tandem.launch.figures import MOVING_STEPS, Snapshot, StepMetrics
from tandem.launch.long_waits import LongWaits

REFRESH_S = 1.0


class Display:
    """Call `note` for events and `begin_phase` for phases; `draw` runs until it is cancelled."""

    def __init__(self, run: str, console: Console | None = None) -> None:
        self.console = console or Console(emoji=False)
        self.run_name = run
        self.phase = "starting"
        self.phase_detail: Callable[[], str] = lambda: ""
        self.metrics: dict[str, StepMetrics] = {}  # by policy
        self._snapshot = Snapshot()
        self._alarms = Repeats()
        self._waits = LongWaits()
        self.activity = Activity("")  # the launcher's own waits
        self.trainers: dict[str, Child] = {}  # by policy
        self._printed_steps: dict[str, int] = {}
        self._started = self._phase_since = time.monotonic()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @snapshot.setter
    def snapshot(self, newest: Snapshot) -> None:
        if newest.paused != self._snapshot.paused:
            self.note(f"paused; `tandem resume {self.run_name}` continues it" if newest.paused else "resumed")
        for worker in newest.workers:
            if worker.id in newest.live and worker.kind != "trainer":  # a trainer's alarms are advice about training
                for alarm in filter(lambda text: self._alarms.count(text) == 1, worker.alarms):
                    self.note(f"{worker.kind}: {alarm}")
        for text in self._waits.new([worker for worker in newest.workers if worker.id in newest.live]):
            self.note(text)
        self._snapshot = newest

    def note(self, text: str) -> None:
        """Print an event on a separate line, above the live part on a terminal."""
        stamp = f"[dim]{as_clock(time.monotonic() - self._started):>6}[/dim]"
        self.console.print(f"{stamp}  {escape(text)}", highlight=False, soft_wrap=True)

    def begin_phase(self, text: str, detail: Callable[[], str] = lambda: "") -> None:
        self.phase, self.phase_detail = text, detail
        self._phase_since = time.monotonic()
        self.note(text)

    async def draw(self) -> None:
        """Draw until cancelled, then clear the live part."""
        if not self.console.is_terminal:
            while True:
                self._print_new_steps()
                self._note_long_wait()
                await asyncio.sleep(REFRESH_S)
        with Live(self.render(), console=self.console, auto_refresh=False, transient=True) as live:
            while True:
                self._note_long_wait()
                live.update(self.render(), refresh=True)
                await asyncio.sleep(REFRESH_S)

    def _note_long_wait(self) -> None:
        """Of the launcher itself. That it stays while a trainer works is none: the phase says so."""
        if self.activity.wait is not None and self._waits.is_due("launch", self.activity.waited_s):
            self.note(f"the launcher {self.activity}")

    def _print_new_steps(self) -> None:
        for policy, metrics in self.metrics.items():
            if metrics.last_step > self._printed_steps.get(policy, 0):
                self._printed_steps[policy] = metrics.last_step
                figures = [*self._step_figures(policy), *self._run_figures()]
                self.note(self._whose(policy) + " ".join(f"{name} {value}" for name, value in figures if value != "–"))

    def _whose(self, policy: str) -> str:
        """The policy's name if there are several."""
        return f"{policy}: " if len(self.metrics) > 1 else ""

    # ---------------------------------------------------------------- layout

    def render(self) -> RenderableType:
        phase = f"{self.phase}, paused" if self.snapshot.paused else self.phase
        since = as_clock(time.monotonic() - self._phase_since)
        head = Text.assemble((self.run_name, "bold"), "  ", phase, f" for {since}  ", (self.phase_detail(), "cyan"))
        parts: list[RenderableType] = [head]
        if self.activity.wait is not None:
            parts.append(Text(f"{self.activity}", style="dim", overflow="ellipsis", no_wrap=True))
        for policy, metrics in self.metrics.items():
            if metrics.lines:
                parts += [self._bar(policy), _grid(self._step_figures(policy)[1:])]
        if any(metrics.lines for metrics in self.metrics.values()):
            parts.append(_grid(self._run_figures()))
        parts.append(self._processes())
        for policy, trainer in self.trainers.items():
            line = trainer.last_line()
            if line:
                name = f"{self._whose(policy)}trainer: {line}"
                parts.append(Text(name, style="dim", overflow="ellipsis", no_wrap=True))
        return Panel(Group(*parts), title="tandem", title_align="left")

    def _bar(self, policy: str) -> Table:
        step, total = self.metrics[policy].last_step, max(self.snapshot.max_steps.get(policy, 0), 1)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(self._whose(policy), ProgressBar(total, step, width=40), f"{step}/{total} steps")
        return bar

    def _step_figures(self, policy: str) -> list[tuple[str, str]]:
        """Figures of one policy's training."""
        metrics, snapshot = self.metrics[policy], self.snapshot
        last = metrics.last
        rewards = [(s, number(metrics.moving(f"reward_by_source/{s}"), ".3f")) for s in metrics.sources()]
        stale = f"{number(last.get('data/staleness_mean'), '.2f')}/{number(last.get('data/staleness_max'), '.0f')}"
        return [
            ("step", f"{metrics.last_step}/{snapshot.max_steps.get(policy) or '?'}"),
            ("reward", number(last.get("reward/mean"), ".3f")),
            (f"mean of {MOVING_STEPS} steps", number(metrics.moving("reward/mean"), ".3f")),
            *rewards,
            ("held-out", number((metrics.column("eval/reward") or [math.nan])[-1], ".3f")),
            ("loss", number(last.get("loss/loss"), ".4f")),
            ("trained tok/s", number(last.get("perf/tokens_per_s"), ",.0f")),
            ("staleness mean/max", stale),
            ("queue", f"{snapshot.ready_groups.get(policy, 0)} groups"),
            ("mismatch", number(last.get("loss/mismatch_mean_nats"), ".5f")),
            ("time left", self._time_left(policy)),
        ]

    def _run_figures(self) -> list[tuple[str, str]]:
        """Figures of the episodes, which all policies share."""
        snapshot = self.snapshot
        return [
            ("sampled tok/s", number(snapshot.total("tokens_per_s", live_only=True), ",.0f")),
            ("episodes", number(snapshot.total("episodes"), ",.0f")),
            ("faults", faults_text(snapshot)),
        ]

    def _time_left(self, policy: str) -> str:
        """Estimate from the median duration of the last steps; a mean would include the time between two launches."""
        metrics, total = self.metrics[policy], self.snapshot.max_steps.get(policy, 0)
        times = metrics.column("time")[-20:]
        if len(times) < 2 or not total:
            return "–"
        pace = median(after - before for before, after in pairwise(times))
        return as_clock(pace * max(0, total - metrics.last_step))

    def _processes(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column in ("", "where", "state", "figures"):
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        for service in self.snapshot.services:
            load = f"{service.running} running, {service.waiting} waiting"
            table.add_row(
                f"{self._whose(service.policy)}engine",
                service.url,
                f"{service.status.value} version {service.version}",
                load,
            )
        for worker in self.snapshot.workers:
            waits = bool(worker.stats.get(WAITED))
            if worker.id in self.snapshot.live and (worker.kind != "keeper" or waits):  # else shown with its engine
                table.add_row(worker.kind, f"{worker.host}:{worker.pid}", worker.doing, _stats_text(worker.stats))
        return table


def _stats_text(stats: dict[str, object]) -> str:
    names = ("episodes_running", "episodes", "tokens_per_s", "reward_mean", "retries", "failed")
    shown = [(n, stats[n]) for n in names if isinstance(stats.get(n), int | float) and stats[n]]
    return " ".join(f"{name}={value:.4g}" for name, value in shown if isinstance(value, int | float))


def _grid(pairs: Sequence[tuple[str, str]], columns: int = 4) -> Table:
    grid = Table.grid(padding=(0, 3))
    for start in range(0, len(pairs), columns):
        grid.add_row(*(Text.assemble((f"{k} ", "dim"), (v, "bold")) for k, v in pairs[start : start + columns]))
    return grid


def faults_text(snapshot: Snapshot) -> str:
    """Attempts lost to infrastructure failures, and slots that failed."""
    return f"{snapshot.lost_attempts} retried, {snapshot.failed_slots} failed"


def number(value: float | None, form: str) -> str:
    return "–" if value is None or math.isnan(value) else format(value, form)
