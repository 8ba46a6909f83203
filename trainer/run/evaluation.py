"""Evaluation during training: the trainer queues a round at every `eval_steps`-th version, and logs results of earlier ones.

    publish(step) ─▶ queue the held-out tasks at that version ─▶ any samplers play them, on any machine
    later step    ─▶ a round has ended? ─▶ its figures go into this step's metrics, with `eval/step` saying whose they are

Documents only: the trainer neither waits for a round nor knows who plays it. Called by every rank, done by rank 0.
"""

import json
import logging
from pathlib import Path

from shared.evaluation.rounds import EvaluationRound, evaluation_round
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig

log = logging.getLogger(__name__)


class Evaluation:
    def __init__(self, bridge: StoreBridge, config: TrainerConfig, parallel: Parallel) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._policy = config.policy
        self._every = config.checkpoint.eval_steps
        self._is_main = parallel.is_main
        self._awaited: dict[int, int] = {}  # {version: step} of unlogged rounds, in order

    def begin(self, step: int, metrics_path: Path) -> None:
        """After `step` steps: withdraw rounds at versions that a resume undid; track those not in `metrics_path` yet."""
        if not self._is_main:
            return
        versions = self._bridge(self._store.versions.all(self._policy))
        withdrawn = [version.version for version in versions if version.withdrawn_to is not None]
        skipped = self._bridge(self._store.evaluation.withdraw(self._policy, withdrawn))
        if skipped:
            log.info("skipped %d evaluation tasks of withdrawn versions", skipped)
        known = set(self._bridge(self._store.evaluation.epochs(self._policy))) - _logged_versions(metrics_path)
        self._awaited = {v.version: v.step for v in versions if v.version in known - set(withdrawn)}
        if self._every and step and step % self._every == 0:
            self._queue(step)  # again: a trainer may have crashed between publishing and queueing

    def after(self, step: int) -> dict[str, float]:
        """Queue the round of the version just published, if due; returns the metrics of the next finished round."""
        if not self._is_main or self._every == 0:
            return {}
        if step % self._every == 0:
            self._queue(step)
        if not self._awaited:
            return {}
        first = next(iter(self._awaited))
        over, total = self._bridge(self._store.evaluation.count_round(self._policy, first))
        if over < total:
            return {}
        del self._awaited[first]
        return _metrics(self._bridge(evaluation_round(self._store, self._policy, first)))

    def awaited_steps(self) -> list[int]:
        """Steps under evaluation, any of which may become the best."""
        return list(self._awaited.values())

    def _queue(self, step: int) -> None:
        newest = self._bridge(self._store.versions.newest(self._policy))
        assert newest is not None, "evaluation follows a publication"
        queued = self._bridge(self._store.evaluation.queue_round(self._policy, newest.version))
        _, total = self._bridge(self._store.evaluation.count_round(self._policy, newest.version))
        if total == 0:
            log.warning("no evaluation at step %d: split eval has no tasks; import some, or set eval_steps to 0", step)
        elif queued:
            self._awaited[newest.version] = newest.step
            log.info("evaluation queued version=%d step=%d tasks=%d", newest.version, step, queued)


def _logged_versions(path: Path) -> set[int]:
    """Versions in the lines that a resume kept."""
    if not path.exists():
        return set()
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {int(line["eval/version"]) for line in lines if line.get("eval/version") is not None}


def _metrics(played: EvaluationRound) -> dict[str, float]:
    """`eval/step`: the optimizer steps of the evaluated weights."""
    if played.overall.reward is None or played.version is None or played.step is None:
        return {}
    result = {"eval/version": float(played.version), "eval/step": float(played.step)}
    for name, estimate in (
        ("reward", played.overall.reward),
        *((f"pass_at_{k}", estimate) for k, estimate in played.overall.pass_at.items()),
    ):
        result |= {f"eval/{name}": estimate.value, f"eval/{name}_low": estimate.low, f"eval/{name}_high": estimate.high}
    for policy, reward in played.overall.other_rewards.items():
        result[f"eval_reward_by_policy/{policy}"] = reward.value
    for source, figures in played.by_source.items():
        if figures.reward is not None:
            result[f"eval_reward_by_source/{source}"] = figures.reward.value
            result[f"eval_pass_at_1_by_source/{source}"] = figures.pass_at[1].value
    return result
