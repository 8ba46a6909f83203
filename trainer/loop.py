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

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from shared.documents.run import HEARTBEAT_S, TrainerEnd, Worker
from shared.errors import ConfigError
from shared.evaluation.rounds import best_steps
from shared.files.output_names import CHECKPOINTS, METRICS_FILE
from shared.processes.failure import failure_now
from shared.processes.metrics_page import of_worker, serving
from shared.processes.waits import WAITED, Activity, Wait
from trainer.checkpoints import checkpoint
from trainer.data.stream import RecordStream
from trainer.process.graceful_stop import stops_at_signals
from trainer.process.parallel import Parallel, parallel_session
from trainer.process.step_errors import named_in_errors
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.publish import Publisher
from trainer.reporting.alarms import Alarms
from trainer.reporting.metrics import MetricsLog
from trainer.reporting.moved import Moved
from trainer.run.evaluation import Evaluation
from trainer.run.takeover import SavedSteps, take_over
from trainer.settings.config import TrainerConfig
from trainer.settings.ineffective import warn_of_unused
from trainer.settings.presets import PRESETS
from trainer.step.configured_learner import configured_learner
from trainer.step.learner import Learner
from trainer.step.shared_device import TrainerDevice

log = logging.getLogger(__name__)


def train(config: TrainerConfig) -> None:
    """Train until `max_steps`, or until SIGTERM or Ctrl-C, after which the current step is finished and saved."""
    with (
        parallel_session(**config.parallel.model_dump()) as parallel,
        StoreBridge(config.db_connection_string, config.run) as bridge,
        ExitStack() as stack,
    ):
        _seed(config.seed + parallel.data.rank)
        if config.preset is not None and parallel.is_main:
            preset = PRESETS[config.preset]
            log.info(
                "preset %s (%s): samplers should run with --advantage %s",
                config.preset,
                preset.source,
                preset.advantage,
            )
        if parallel.is_main:
            warn_of_unused(config, config.without_effect())
            _warn_of_staleness(config)
        status = stack.enter_context(_status(bridge, config, parallel))
        device = TrainerDevice(bridge, config.sharing, parallel, _worker_id(config))
        learner = _learner(config, parallel, device)
        publisher = Publisher(bridge, config, parallel, learner, device)
        publisher.check()
        trainer_generation = take_over(bridge, config, parallel, learner.steps_done)
        stream = RecordStream(
            bridge,
            config,
            parallel,
            trainer_generation=trainer_generation,
            linear=learner.linear,
            vocab_size=learner.vocab_size,
        )
        if parallel.is_main:
            bridge(bridge.store.settings.keep(f"trainer-{config.policy}", config.snapshot(), _worker_id(config)))
        evaluation = Evaluation(bridge, config, parallel)
        saved_steps = SavedSteps(bridge, config, parallel, trainer_generation)
        status.announce()
        with stream, stops_at_signals(stream):
            publisher.begin(trainer_generation)
            fence = checkpoint.Fence(
                trainer_generation,
                lambda: bridge(bridge.store.runs.is_current_trainer(config.policy, trainer_generation)),
            )
            why = _run(learner, stream, publisher, evaluation, fence, saved_steps, config, parallel, status, device)
            publisher.end()
            if parallel.is_main:
                end = TrainerEnd(
                    trainer_generation=trainer_generation, step=learner.steps_done, reason=why, used_up=stream.used_up
                )
                bridge(bridge.store.runs.end_trainer(config.policy, end))


def _run(
    learner: Learner,
    stream: RecordStream,
    publisher: Publisher,
    evaluation: Evaluation,
    fence: checkpoint.Fence,
    saved_steps: SavedSteps,
    config: TrainerConfig,
    parallel: Parallel,
    status: "Status",
    device: TrainerDevice,
) -> str:
    """Run the steps; returns the reason of the end. Raises DataError if every step of the run was skipped."""
    why = f"all {config.optimizer.max_steps} steps are taken"
    metrics_path = config.folder / METRICS_FILE
    awaited_steps = evaluation.awaited_steps if config.checkpoint.keep_best_checkpoints else list
    checkpoints = checkpoint.Checkpoints(
        config.folder / CHECKPOINTS,
        parallel,
        keep_last=config.checkpoint.keep_checkpoints,
        asynchronous=config.checkpoint.async_checkpoints,
        keep_also=lambda: {*best_steps(metrics_path, config.checkpoint.keep_best_checkpoints), *awaited_steps()},
        fence=fence,
    )
    moved = Moved(metrics_path, learner.steps_done, parallel)
    with _metrics_log(metrics_path, learner.steps_done, config, parallel) as metrics_log:
        alarms = Alarms(metrics_path)
        evaluation.begin(learner.steps_done, metrics_path)
        for step in range(learner.steps_done + 1, config.optimizer.max_steps + 1):
            started = time.monotonic()
            with status.waiting(step - 1, lambda: stream.waiting):
                while not stream.wait(step):
                    checkpoints.settle()  # finish it before waiting, so that a kill during the wait does not lose it
                    saved_steps.note(checkpoints.saved)
                    publisher.answer_requests()
            with named_in_errors(step):
                batch = stream.next_batch(step)
            if batch is None:
                why = f"before step {step} of {config.optimizer.max_steps}: {stream.end}"
                log.info("ended %s", why)
                break
            status.doing(f"step {step}", step=step - 1)
            with device.held(learner) as waited, named_in_errors(step, stream.borrowed_tasks):
                result = learner.step_in_minibatches(batch.minibatches)
                stream.commit(step)
                checkpoints.settle()
                if step % config.checkpoint.save_steps == 0 or step == config.optimizer.max_steps:
                    checkpoints.save(learner, _accounting(learner, config))
                saved_steps.note(checkpoints.saved)
                published = publisher.publish(step)
            moved.note(step, skipped=result.skipped, not_finite=result.not_finite)
            stream.keep_logprobs(step, batch, result.logprobs)
            metrics = batch.metrics | result.metrics | published | waited | evaluation.after(step)
            metrics |= {"step/skipped": float(result.skipped), "time/total_s": time.monotonic() - started}
            metrics["perf/tokens_per_s"] = metrics["data/tokens_flat"] / metrics["time/total_s"]
            metrics["perf/idle_fraction"] = metrics["time/wait_s"] / metrics["time/total_s"]
            raised, alarm_metrics = alarms.check(metrics, result.not_finite)
            metrics |= alarm_metrics
            if metrics_log is not None:
                metrics_log.log(step, metrics | {"time": time.time()})
                stream.note_metrics(step, metrics)
                for alarm in raised:
                    log.warning("step %d alarm %s: %s", step, alarm.rule.name, alarm)
            status.doing(f"step {step} done", step=step, alarms=[str(alarm) for alarm in raised], **_headline(metrics))
        checkpoints.save(learner, _accounting(learner, config))  # if a signal ended the run between two checkpoints
        checkpoints.settle(wait=True)
        saved_steps.note(checkpoints.saved)
        device.vacate(learner)
    moved.check()
    return why


def _learner(config: TrainerConfig, parallel: Parallel, device: TrainerDevice) -> Learner:
    """Load the model, measure how it is computed, and resume; a shared device is held for that too."""
    with device.held():
        learner = configured_learner(
            config.model,
            config.seed,
            config.loss,
            config.optimizer.adamw(),
            parallel,
            config.memory,
            with_entropy=config.report.with_entropy,
            keep_logprobs=config.report.keep_logprobs,
        )
        _resume(learner, config, parallel)
        device.vacate(learner)
    return learner


def _warn_of_staleness(config: TrainerConfig) -> None:
    if config.data.max_staleness > 0 and not config.loss.weighs_what_others_sampled:
        log.warning(
            "%s with clip_anchor %s and rollout_is none gives old tokens the weight of fresh ones: set rollout_is token, or "
            "max_staleness 0",
            config.loss.loss,
            config.loss.clip_anchor,
        )


def _resume(learner: Learner, config: TrainerConfig, parallel: Parallel) -> None:
    """Load the newest checkpoint. Raises ConfigError for another run's: its step does not refer to this run's data."""
    newest = parallel.broadcast_object(checkpoint.latest(config.folder / CHECKPOINTS) if parallel.is_main else None)
    if newest is not None:
        resumed = checkpoint.load(learner, newest, parallel)
        found = tuple(resumed.accounting.get(name) for name in ("run", "policy"))
        if found != (config.run, config.policy):
            raise ConfigError(
                f"{newest} is of run {found[0]}, policy {found[1]}; this is run {config.run}, policy {config.policy}: expected "
                "an output_dir of its own"
            )
        log.info("resumed from %s at step %d", newest, resumed.step)


def _accounting(learner: Learner, config: TrainerConfig) -> dict[str, Any]:
    return {
        "run": config.run,
        "policy": config.policy,
        "step": learner.steps_done,
        "model_name_or_path": str(config.model.model_name_or_path.resolve()),
        "trainable": config.model.trainable(config.seed).model_dump(),
    }


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def _metrics_log(path: Any, steps_done: int, config: TrainerConfig, parallel: Parallel) -> Iterator[MetricsLog | None]:
    if not parallel.is_main:
        yield None
        return
    with MetricsLog(
        path,
        resume_step=steps_done + 1,
        trackers=config.report.report_to,
        run_name=config.tracked_as,
        settings=config.snapshot(),
    ) as metrics_log:
        yield metrics_log


def _headline(metrics: dict[str, float]) -> dict[str, float]:
    names = (
        "reward/mean",
        "loss/loss",
        "data/staleness_mean",
        "loss/mismatch_mean_nats",
        "perf/tokens_per_s",
        "learner/learning_rate",
    )
    return {name: metrics[name] for name in names if name in metrics}


class Status:
    """This process's activity, for `tandem status`; sent by the bridge's thread while torch computes.

    Before `announce` it sends waits alone: a trainer that is refused at its start leaves no trace.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.activity = Activity(worker.doing)
        self._is_announced = False
        self._wait: Callable[[], Wait | None] = lambda: None

    def doing(self, what: str, *, alarms: list[str] | None = None, **stats: float) -> None:
        """Set the activity. `alarms` replace the previous ones; None keeps them."""
        update: dict[str, Any] = {"stats": self._worker.stats | stats}
        self._worker = self._worker.model_copy(update=update if alarms is None else {**update, "alarms": alarms})
        self.activity.set(what)

    def announce(self) -> None:
        self._is_announced = True

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat is to be sent."""
        return self._is_announced or self.activity.wait is not None

    @contextmanager
    def waiting(self, step: int, wait: Callable[[], Wait | None]) -> Iterator[None]:
        """Meanwhile each heartbeat says what `wait` returns. `step`: the last one that was taken."""
        self.doing(f"looking for the data of step {step + 1}", step=step)
        self._wait = wait
        try:
            yield
        finally:
            self._wait = lambda: None

    @property
    def worker(self) -> Worker:
        if (wait := self._wait()) is not None:
            self.activity.set(wait)
        stats = self._worker.stats | {WAITED: self.activity.waited_s}
        return self._worker.model_copy(update={"doing": str(self.activity), "stats": stats})


def _worker_id(config: TrainerConfig) -> str:
    return f"trainer:{config.policy}:{socket.gethostname()}:{os.getpid()}"


@contextmanager
def _status(bridge: StoreBridge, config: TrainerConfig, parallel: Parallel) -> Iterator[Status]:
    host, pid = socket.gethostname(), os.getpid()
    worker = Worker(id=_worker_id(config), kind="trainer", host=host, pid=pid, doing="starting")
    status = Status(worker.model_copy(update={"stats": {"rank": parallel.rank}, "heartbeat_s": HEARTBEAT_S}))

    sent: list[Worker] = []  # the last heartbeat

    async def beat() -> None:
        while True:
            if status.is_due:
                await bridge.store.workers.heartbeat(status.worker)
                sent[:] = [status.worker]
            await asyncio.sleep(HEARTBEAT_S)

    beating = bridge.background(beat())
    address = config.report.metrics_address if parallel.is_main else None
    try:
        with status.activity.of_process(), serving(address, config.run, lambda: of_worker(status.worker)):
            yield status
    finally:
        beating.cancel()
        if sent or status.is_due:
            bridge(bridge.store.workers.leave(worker.id, failure_now()))
