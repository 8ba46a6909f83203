"""Becoming a policy's trainer: look first, refuse what a kill does not explain, then take over and go back to the checkpoint.

    look ─▶ the same version 0? the newest checkpoint? ─▶ take over ─▶ release, rewind ─▶ train
              no: an error, and nothing has changed         one update, of exactly the run that was looked at

A kill costs the steps since the newest checkpoint, which the run's document names: to begin there again takes those back, and
is how every restart continues. To begin anywhere before it (another output_dir, a checkpoint that is gone) would undo steps that
are on a disk somewhere: that is refused, unless `undo_later_steps` says it.
"""

import logging

from shared.documents.run import Admission, Run, SavedCheckpoint
from shared.errors import ConfigError, LeaseLost
from shared.files.output_names import CHECKPOINTS
from shared.store.settings import trainer_kind
from trainer.checkpoints import folders
from trainer.data.offline import bring_in, check_source
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.run.status import worker_id
from trainer.settings.config import TrainerConfig

log = logging.getLogger(__name__)


def take_over(bridge: StoreBridge, config: TrainerConfig, parallel: Parallel, step: int) -> int:
    """Become the policy's trainer from `step` on; returns this start's trainer generation. Every rank must call it.

    Undoes marks above `step`, and takes back what earlier starts had borrowed. Raises ConfigError where it must not begin.
    """
    store, trainer_generation = bridge.store, None
    if parallel.is_main:
        trainer_generation = _begin(bridge, config, step)
        folders.take_over(config.folder / CHECKPOINTS, step, trainer_generation)
    bring_in(bridge, config, parallel)
    if trainer_generation is not None:
        released = bridge(store.data.release_claims(config.policy, trainer_generation))
        rewound = bridge(store.data.rewind(config.policy, step, max_trained_count=config.data.max_trained_count))
        log.info("trainer start=%d step=%d released=%d rewound=%d", trainer_generation, step, released, rewound)
    return int(parallel.broadcast_object(trainer_generation))


def checkpoint_at(config: TrainerConfig, step: int) -> SavedCheckpoint:
    return SavedCheckpoint(step=step, folder=str((config.folder / CHECKPOINTS).resolve()))


def _begin(bridge: StoreBridge, config: TrainerConfig, step: int) -> int:
    admission = Admission(
        groups_per_step=config.data.groups_per_step,
        max_staleness=config.data.max_staleness,
        num_steps=config.optimizer.max_steps,
    )
    while True:
        seen = startable_run(bridge, config, step)
        settings = bridge(bridge.store.settings.keep(trainer_kind(config.policy), config.snapshot(), worker_id(config)))
        try:
            return bridge(
                bridge.store.runs.start_trainer(
                    config.policy,
                    admission,
                    seen=seen,
                    checkpoint=checkpoint_at(config, step),
                    settings=settings,
                )
            )
        except LeaseLost as exc:
            log.info("looking again: %s", exc)


def startable_run(bridge: StoreBridge, config: TrainerConfig, step: int) -> Run:
    """The run as it is, if a trainer may begin in it from `step`. Changes nothing. Raises ConfigError."""
    check_source(bridge, config)
    store = bridge.store
    run = bridge(store.runs.read())
    newest = bridge(store.versions.newest(config.policy))
    if newest is None and step and config.policy not in run.checkpoints:
        log.error(  # an error, so that the launcher's display shows it
            "run %s, policy %s: this database knows no step of the run, and %s has the checkpoint of step %d: training "
            "continues from there, with new tasks; for a new run stop it, and give another output_dir or run name",
            config.run,
            config.policy,
            config.folder,
            step,
        )
    if newest is None or step >= newest.step or config.checkpoint.undo_later_steps:
        return run
    mine, saved = checkpoint_at(config, step), run.checkpoints.get(config.policy)
    moved = saved is None or saved.folder != mine.folder
    if saved is not None and step >= saved.step and not (moved and step == 0):
        return run  # the newest that was saved: later steps were lost with the trainer that took them
    known = f"step {saved.step} in {saved.folder}" if saved and saved.step else "none that this run knows of"
    marked = bridge(store.data.count_above(config.policy, step))
    raise ConfigError(
        f"run {config.run}, policy {config.policy}: this start would begin at step {step}, "
        f"{f'from {mine.folder}' if step else f'since there is no checkpoint in {mine.folder}'}; the run is at step "
        f"{newest.step} (version {newest.version}), and its newest checkpoint is {known}. To begin earlier would withdraw "
        f"those weights and train {marked} records again: expected the output_dir with that checkpoint; "
        "--undo_later_steps true begins all the same, and nothing brings the later steps back"
    )
