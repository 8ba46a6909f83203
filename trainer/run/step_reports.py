"""What is logged of each step: its metrics with times, rates and alarms, in metrics.jsonl, the trackers, the step's document and
the heartbeat.
"""

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from shared.files.output_names import METRICS_FILE
from trainer.data.stream import RecordStream
from trainer.process.parallel import Parallel
from trainer.reporting.alarms import Alarms
from trainer.reporting.metrics import MetricsLog
from trainer.reporting.moved import Moved
from trainer.run.status import Status
from trainer.settings.config import TrainerConfig
from trainer.step.learner import StepResult

log = logging.getLogger(__name__)

HEADLINE = (  # metrics that a heartbeat has
    "reward/mean",
    "loss/loss",
    "data/staleness_mean",
    "loss/mismatch_mean_nats",
    "perf/tokens_per_s",
    "learner/learning_rate",
)


class StepReports:
    """Every rank makes the same calls; rank 0 writes. `steps_done`: by earlier starts, whose lines stay in the file."""

    def __init__(
        self, config: TrainerConfig, parallel: Parallel, stream: RecordStream, status: Status, steps_done: int
    ) -> None:
        self._stream = stream
        self._status = status
        self.path = config.folder / METRICS_FILE
        self._moved = Moved(self.path, steps_done, parallel)
        self._metrics_log: MetricsLog | None = None
        if parallel.is_main:
            self._metrics_log = MetricsLog(
                self.path,
                resume_step=steps_done + 1,
                trackers=config.report.report_to,
                run_name=config.tracked_as,
                settings=config.snapshot(),
            )
        self._alarms = Alarms(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._metrics_log is not None:
            self._metrics_log.__exit__(kind, value, trace)

    def report(self, step: int, result: StepResult, metrics: Mapping[str, float], *, since: float) -> None:
        """`metrics`: of all parts of the step. `since`: when it began, by the monotonic clock."""
        self._moved.note(step, skipped=result.skipped, not_finite=result.not_finite)
        complete = with_rates(metrics, time.monotonic() - since, skipped=result.skipped)
        alarms, alarm_metrics = self._alarms.check(complete, result.not_finite)
        complete |= alarm_metrics
        if self._metrics_log is not None:
            self._metrics_log.log(step, complete | {"time": time.time()})
            self._stream.note_metrics(step, complete)
            for alarm in alarms:
                log.warning("step %d alarm %s: %s", step, alarm.rule.name, alarm)
        stats = {name: complete[name] for name in HEADLINE if name in complete}
        self._status.doing(f"step {step} done", step=step, alarms=[str(alarm) for alarm in alarms], **stats)

    def require_movement(self) -> None:
        """At the end. Raises DataError if every step of the run was skipped."""
        self._moved.check()


def with_rates(metrics: Mapping[str, float], total_s: float, *, skipped: bool) -> dict[str, float]:
    """The same, with the step's time, its tokens per second, and the fraction of it that was waited for data."""
    return {
        **metrics,
        "step/skipped": float(skipped),
        "time/total_s": total_s,
        "perf/tokens_per_s": metrics["data/tokens_flat"] / total_s,
        "perf/idle_fraction": metrics["time/wait_s"] / total_s,
    }
