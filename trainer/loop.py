"""The trainer's driver.

    stream (fresh, borrowed) ─▶ merge ─▶ pack ─▶ forward ─▶ loss ─▶ step ─▶ commit ─▶ checkpoint ─▶ publish ─▶ log
       waits for data, and                                                               engines follow by themselves,
       while the run is paused                                                           a round of evaluation is queued

Order matters: a checkpoint of step s is written after the commit of s, so a checkpoint's marks are always complete; a resume
undoes marks above the newest checkpoint. Nothing here starts, calls or waits for a sampler or an engine; while waiting for
data, the trainer answers engines' requests for complete weights, which are documents. Its last write is its end, with the
reason, to the run's document; a killed or failed trainer writes none. A device that it shares with engines
(`trainer/step/shared_device.py`) is held, once they sleep, from after the batch is there until the weights are published.
"""

import logging
import time
from dataclasses import dataclass

from shared.documents.run import TrainerEnd
from trainer.data.stream import Batch, RecordStream
from trainer.process.graceful_stop import stops_at_signals
from trainer.process.parallel import parallel_session
from trainer.process.step_errors import named_in_errors
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.publish import Publisher
from trainer.run.evaluation import Evaluation
from trainer.run.saving import RunCheckpoints
from trainer.run.start import resumed_learner, seed_and_warn
from trainer.run.status import Status, live_status, worker_id
from trainer.run.step_reports import StepReports
from trainer.run.takeover import take_over
from trainer.settings.config import TrainerConfig
from trainer.step.learner import Learner
from trainer.step.shared_device import TrainerDevice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the steps are taken with, in the order in which it is opened."""

    max_steps: int
    status: Status
    device: TrainerDevice
    learner: Learner
    publisher: Publisher
    stream: RecordStream
    evaluation: Evaluation
    checkpoints: RunCheckpoints
    reports: StepReports


def train(config: TrainerConfig) -> None:
    """Train until `max_steps`, SIGTERM or Ctrl-C; the step in hand is finished and saved. DataError: every step was skipped."""
    with (
        parallel_session(**config.parallel.model_dump()) as parallel,
        StoreBridge(config.db_connection_string, config.run) as bridge,
        live_status(bridge, config, parallel) as status,
    ):
        seed_and_warn(bridge, config, parallel)
        device = TrainerDevice(bridge, config.sharing, parallel, worker_id(config))
        learner = resumed_learner(config, parallel, device)
        publisher = Publisher(bridge, config, parallel, learner, device)
        publisher.check()
        term = take_over(bridge, config, parallel, learner.steps_done)
        stream = RecordStream(
            bridge,
            config,
            parallel,
            trainer_generation=term,
            linear=learner.linear,
            short_rows=learner.short_rows,
            bounds=learner.bounds,
        )
        evaluation = Evaluation(bridge, config, parallel)
        status.announce()
        with stream, stops_at_signals(stream):
            publisher.begin(term)
            checkpoints = RunCheckpoints(bridge, config, parallel, evaluation, term)
            with StepReports(config, parallel, stream, status, learner.steps_done) as reports:
                evaluation.begin(learner.steps_done, reports.path)
                last = config.optimizer.max_steps
                parts = Parts(last, status, device, learner, publisher, stream, evaluation, checkpoints, reports)
                reason = _take_steps(parts)
                checkpoints.finish(learner)
                device.vacate(learner)
            reports.require_movement()
            publisher.end()
            if parallel.is_main:
                end = TrainerEnd(
                    trainer_generation=term, step=learner.steps_done, reason=reason, used_up=stream.used_up
                )
                bridge(bridge.store.runs.end_trainer(config.policy, end))


def _take_steps(parts: Parts) -> str:
    """Returns the reason of the end."""
    for step in range(parts.learner.steps_done + 1, parts.max_steps + 1):
        began = time.monotonic()
        batch = _next_batch(parts, step)
        if batch is None:
            reason = f"before step {step} of {parts.max_steps}: {parts.stream.end}"
            log.info("ended %s", reason)
            return reason
        parts.status.doing(f"step {step}", step=step - 1)
        with parts.device.held(parts.learner) as waited, named_in_errors(step, parts.stream.borrowed_tasks):
            result = parts.learner.step_in_minibatches(batch.minibatches)
            parts.stream.commit(step)
            parts.checkpoints.after_step(parts.learner)
            published = parts.publisher.publish(step)
        parts.stream.store_logprobs(step, batch, result.logprobs)
        evaluated = parts.evaluation.after(step)
        metrics = batch.metrics | result.metrics | published | waited | evaluated
        parts.reports.report(step, result, metrics, since=began)
    return f"all {parts.max_steps} steps are taken"


def _next_batch(parts: Parts, step: int) -> Batch | None:
    with parts.status.waiting(step - 1, parts.stream):
        while not parts.stream.wait(step):
            parts.checkpoints.settle()  # finish it before waiting, so that a kill during the wait does not lose it
            parts.publisher.answer_requests()
    with named_in_errors(step):
        return parts.stream.next_batch(step)
