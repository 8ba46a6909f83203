"""Publishing: weights written beside and renamed, checksummed, announced in `policy_versions`. Engines follow by themselves.

    OUTPUT/versions/step-000012-3/   the weights after 12 steps, published by the trainer's third start

A resume from an older step withdraws what came after it, and publishes its own weights again, under a new number.
"""

import logging
import shutil
from pathlib import Path

from shared.documents import PolicyVersion
from shared.errors import LeaseLost
from shared.weights import manifest_of
from trainer.bridge import StoreBridge
from trainer.config import TrainerConfig
from trainer.learner import Learner
from trainer.parallel import Parallel
from trainer.weights import write_weights

log = logging.getLogger(__name__)


class Publisher:
    """Every method is called by every rank; rank 0 speaks to the database."""

    def __init__(
        self,
        bridge: StoreBridge,
        config: TrainerConfig,
        parallel: Parallel,
        learner: Learner,
        *,
        incarnation: int,
    ) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._config = config
        self._parallel = parallel
        self._learner = learner
        self._incarnation = incarnation
        self._folder = config.folder / "versions"

    def begin(self) -> None:
        """Make the surviving history's newest version the one that the learner holds."""
        step = self._learner.steps_done
        if self._parallel.is_main:
            source = self._config.model_name_or_path
            self._bridge(
                self._store.versions.ensure_first(self._config.policy, str(source.resolve()), manifest_of(source))
            )
            withdrawn = self._bridge(self._store.versions.withdraw_after(self._config.policy, step))
            if withdrawn:
                log.info("withdrew %d versions after step %d, which the resume undoes", withdrawn, step)
        newest = self._parallel.broadcast_object(
            self._bridge(self._store.versions.newest(self._config.policy)) if self._parallel.is_main else None
        )
        if newest is None or newest.step != step:
            self.publish(step)

    def publish(self, step: int) -> dict[str, float]:
        """Write, announce, prune. Returns seconds and bytes. Raises LeaseLost when another trainer has started."""
        written = write_weights(
            self._learner.causal_lm,
            self._config.model_name_or_path,
            self._folder / f"step-{step:06d}-{self._incarnation}",
            self._parallel,
        )
        if self._parallel.is_main:
            if not self._bridge(self._store.runs.is_current_trainer(self._config.policy, self._incarnation)):
                raise LeaseLost(
                    f"policy {self._config.policy}: another trainer has started; step {step} stays unannounced"
                )
            version = self._bridge(
                self._store.versions.announce(self._config.policy, step, str(written.path.resolve()), written.manifest)
            )
            log.info("published version=%d step=%d bytes=%d", version.version, step, written.total_bytes)
            self._prune()
        return {"time/publish_s": written.seconds, "publish/bytes": float(written.total_bytes)}

    def _prune(self) -> None:
        """Delete the files of all but the last `keep_versions`, and of those still to be evaluated; their documents stay."""
        versions = self._bridge(self._store.versions.all(self._config.policy))
        mine = [v for v in versions if not v.pruned and self._owns(v)]
        surviving = [v for v in mine if v.withdrawn_to is None]
        awaited = self._bridge(self._store.evaluation.open_versions(self._config.policy))
        old = [v for v in mine if v.withdrawn_to is not None]
        old += [v for v in surviving[: -self._config.keep_versions] if v.version not in awaited]
        for version in old:
            shutil.rmtree(version.path, ignore_errors=True)
        if old:
            self._bridge(self._store.versions.mark_pruned(self._config.policy, [v.version for v in old]))

    def _owns(self, version: PolicyVersion) -> bool:
        return Path(version.path).parent == self._folder.resolve()
