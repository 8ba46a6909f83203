"""When a run's checkpoints are written and which are kept; the run's document names the newest.

a step is taken ─▶ finish the pending checkpoint, if it is on disk ─▶ begin the next one, if due ─▶ note what is complete
"""

from typing import Any

from shared.evaluation.rounds import best_steps
from shared.files.output_names import CHECKPOINTS, METRICS_FILE
from trainer.checkpoints import checkpoint
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.run.evaluation import Evaluation
from trainer.run.takeover import checkpoint_at
from trainer.settings.config import TrainerConfig
from trainer.step.learner import Learner


class RunCheckpoints:
    """Every rank makes the same calls. Kept are the newest, the best, and those whose evaluation has not ended."""

    def __init__(
        self,
        bridge: StoreBridge,
        config: TrainerConfig,
        parallel: Parallel,
        evaluation: Evaluation,
        trainer_generation: int,
    ) -> None:
        self._config = config
        self._evaluation = evaluation
        self._saved_steps = SavedSteps(bridge, config, parallel, trainer_generation)
        self._checkpoints = checkpoint.Checkpoints(
            config.folder / CHECKPOINTS,
            parallel,
            keep_last=config.checkpoint.keep_checkpoints,
            asynchronous=config.checkpoint.async_checkpoints,
            keep_also=self._best_and_awaited,
            fence=checkpoint.Fence(
                trainer_generation,
                lambda: bridge(bridge.store.runs.is_current_trainer(config.policy, trainer_generation)),
            ),
        )

    def settle(self, *, wait: bool = False) -> None:
        """Finish the pending checkpoint, if its files are there or `wait`."""
        self._checkpoints.settle(wait=wait)
        self._saved_steps.note(self._checkpoints.saved)

    def after_step(self, learner: Learner) -> None:
        """Begin a checkpoint of the step that was just taken, if it is due."""
        self._checkpoints.settle()
        step = learner.steps_done
        if step % self._config.checkpoint.save_steps == 0 or step == self._config.optimizer.max_steps:
            self._checkpoints.save(learner, self._accounting(learner))
        self._saved_steps.note(self._checkpoints.saved)

    def finish(self, learner: Learner) -> None:
        """At the end: a checkpoint of the last step, also where a signal ended the run between two checkpoints."""
        self._checkpoints.save(learner, self._accounting(learner))
        self.settle(wait=True)

    def _best_and_awaited(self) -> set[int]:
        keep_best = self._config.checkpoint.keep_best_checkpoints
        best = best_steps(self._config.folder / METRICS_FILE, keep_best)
        return {*best, *(self._evaluation.awaited_steps() if keep_best else ())}

    def _accounting(self, learner: Learner) -> dict[str, Any]:
        config = self._config
        return {
            "run": config.run,
            "policy": config.policy,
            "step": learner.steps_done,
            "model_name_or_path": str(config.model.model_name_or_path.resolve()),
            "trainable": config.model.trainable(config.seed).model_dump(),
        }


class SavedSteps:
    """The run's document names the newest checkpoint. Every rank may say it; rank 0 writes it."""

    def __init__(self, bridge: StoreBridge, config: TrainerConfig, parallel: Parallel, trainer_generation: int) -> None:
        self._bridge = bridge
        self._config = config
        self._is_main = parallel.is_main
        self._trainer_generation = trainer_generation
        self._noted: int | None = None

    def note(self, step: int | None) -> None:
        """Raises LeaseLost when another trainer of this policy has started."""
        if self._is_main and step is not None and step != self._noted:
            saved = checkpoint_at(self._config, step)
            self._bridge(self._bridge.store.runs.note_checkpoint(self._config.policy, self._trainer_generation, saved))
            self._noted = step
