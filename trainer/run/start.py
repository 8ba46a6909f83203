"""The start of a trainer, before it takes over: seeds, warnings, and the learner."""

import logging
import random

import numpy as np
import torch

from shared.errors import ConfigError
from shared.files.output_names import CHECKPOINTS
from trainer.checkpoints import folders, restore
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.run.preset_check import log_preset
from trainer.settings.config import TrainerConfig
from trainer.settings.ineffective import warn_of_unused
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.step.shared_device import TrainerDevice

log = logging.getLogger(__name__)


def seed_and_warn(bridge: StoreBridge, config: TrainerConfig, parallel: Parallel) -> None:
    """Seed this rank; rank 0 logs the preset, and settings that have no effect or do not fit each other."""
    seed = config.seed + parallel.data.rank
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if not parallel.is_main:
        return
    log_preset(bridge, config)
    warn_of_unused(config, config.without_effect())
    if config.data.max_staleness > 0 and not config.loss.weighs_what_others_sampled:
        log.warning(
            "%s with clip_anchor %s and rollout_is none gives old tokens the weight of fresh ones: set rollout_is token, or "
            "max_staleness 0",
            config.loss.loss,
            config.loss.clip_anchor,
        )


def resumed_learner(config: TrainerConfig, parallel: Parallel, device: TrainerDevice) -> Learner:
    """Load the model, measure how it is computed, and resume; a shared device is held for that too."""
    with device.held():
        measured = {"with_entropy": config.report.with_entropy, "keep_logprobs": config.report.keep_logprobs}
        options = LearnerOptions.of(config.model, config.memory, config.seed, **measured)
        directory, optimizer = config.model.model_name_or_path, config.optimizer.chosen()
        learner = open_learner(directory, config.loss, optimizer, parallel, options)
        resume(learner, config, parallel)
        device.vacate(learner)
    return learner


def resume(learner: Learner, config: TrainerConfig, parallel: Parallel) -> None:
    """Load the newest checkpoint. Raises ConfigError for another run's: its step does not refer to this run's data."""
    newest = parallel.broadcast_object(folders.latest(config.folder / CHECKPOINTS) if parallel.is_main else None)
    if newest is None:
        return
    resumed = restore.load(learner, newest, parallel)
    run, policy = (resumed.accounting.get(name) for name in ("run", "policy"))
    if (run, policy) != (config.run, config.policy):
        raise ConfigError(
            f"{newest} is of run {run}, policy {policy}; this is run {config.run}, policy {config.policy}: expected "
            "an output_dir of its own"
        )
    log.info("resumed from %s at step %d", newest, resumed.step)
