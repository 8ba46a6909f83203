"""Publishing: weights are written to a temporary directory, renamed, checksummed and announced in `policy_versions`.

Engines follow by themselves. A version is flushed to disk after it was announced, while engines read it, and before the next one
is written. So a power cut can damage the newest version alone. A resume from an earlier step withdraws it anyway; a resume from
its own step finds the damage, withdraws it, and publishes the weights again.

    OUTPUT/versions/step-000012-3/   the weights after 12 steps, published by the trainer's third start
        model.safetensors, config.json, …   the complete directory, and
        weights.delta, or adapter/…         the difference to an older version: either of the two, or both

`publish_mode: delta` writes changes, and a complete directory every `full_every` versions; `adapter` writes adapters of
version 0 (`trainer/publishing/version_files.py`). In mode delta the first version of every start of the trainer is complete. In
both modes the last step's version is complete, since the trainer then ends and can write none later. So is the next version after
an engine could not assemble one and requested it in its `inference_services` document; while the trainer waits for data, it
answers such a request at once, since that data may depend on it. With `weight_transport: broadcast` a version on disk is offered
over the network as well (`trainer/publishing/broadcast.py`), with `peers` its files are served in chunks
(`trainer/publishing/weights_server.py`). A resume from an older step withdraws the later versions, and
publishes its own weights again, under a new number. Gathering the weights takes the device: one that is shared with engines is
held for it (`trainer/step/shared_device.py`).
"""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from shared.documents.offers import BroadcastOffer
from shared.documents.run import FIRST_VERSION, FileEntry, PolicyVersion
from shared.errors import DataError
from shared.files.output_names import step_folder
from shared.weights.assembly import ancestors
from shared.weights.files import manifest_of
from trainer.checkpoints.atomic_directories import flush_directory, remove_leftovers
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.broadcast import Broadcaster
from trainer.publishing.version_files import State, Written, verify_version, version_files
from trainer.publishing.weights_server import WeightsServer
from trainer.settings.config import TrainerConfig
from trainer.step.learner import Learner
from trainer.step.shared_device import TrainerDevice

log = logging.getLogger(__name__)


class Publisher:
    """Every rank calls every method; rank 0 accesses the database."""

    def __init__(
        self,
        bridge: StoreBridge,
        config: TrainerConfig,
        parallel: Parallel,
        learner: Learner,
        device: TrainerDevice,
    ) -> None:
        self._bridge = bridge
        self._store = bridge.store
        self._config = config
        self._parallel = parallel
        self._learner = learner
        self._device = device
        self._trainer_generation = 0  # from `begin` on
        self._first: Mapping[str, FileEntry] = {}  # the files of version 0; rank 0
        self._folder = config.folder / "versions"
        self._files = version_files(config, learner, parallel)
        self._newest_full = -1
        self._answered_at = -1  # step whose weights were published again
        self._since_full = 0
        self._flusher = ThreadPoolExecutor(1, "flush")  # one flush at a time
        self._flush: Future[None] | None = None  # of the last version
        self._broadcaster: Broadcaster | None = None
        if parallel.is_main and (settings := config.publish.transport.broadcast(parallel.device)) is not None:
            self._broadcaster = Broadcaster(bridge.store, config.policy, settings)
        self._server: WeightsServer | None = None
        self._url: str | None = None  # of the server
        if parallel.is_main and config.publish.transport.weight_transport == "peers":
            self._server = WeightsServer(bridge.store, config.policy, config.publish.transport)

    def check(self) -> None:
        """Before take-over: check that the run's version 0 is the trainer's initial model. Changes nothing.

        Raises DataError, and ConfigError if the model does not support the publish mode.
        """
        if self._parallel.is_main:
            policy, source = self._config.policy, self._config.model.model_name_or_path
            self._first = manifest_of(source)
            if self._bridge(self._store.versions.newest(policy)) is not None:
                self._bridge(self._store.versions.check_first(policy, str(source.resolve()), self._first))
            self._files.begin(self._first)

    def begin(self, trainer_generation: int) -> None:
        """Make the learner's weights the newest version of the surviving history."""
        step, self._trainer_generation = self._learner.steps_done, trainer_generation
        if self._parallel.is_main:
            remove_leftovers(self._folder, "step-*")  # of earlier starts, whose versions had other names
            policy, source = self._config.policy, self._config.model.model_name_or_path
            self._bridge(self._store.versions.ensure_first(policy, str(source.resolve()), self._first))
            self._bridge(self._store.versions.fence(policy, trainer_generation, step))
            self._bridge(self._store.versions.fail_broadcasts(policy, trainer_generation))
            withdrawn = self._bridge(self._store.versions.withdraw_after(policy, step, trainer_generation))
            if withdrawn:
                log.info("withdrew %d versions after step %d, which the resume undoes", withdrawn, step)
            self._serve()
        newest = self._parallel.broadcast_object(self._newest_whole(step) if self._parallel.is_main else None)
        if newest is None or newest.step != step:
            with self._device.held(self._learner):
                self.publish(step)
        elif newest.kind == "full":
            self._newest_full = newest.version

    def answer_requests(self) -> None:
        """Publish the weights again, complete, if an engine could not assemble the last version. Once per step."""
        step = self._learner.steps_done
        requested = self._parallel.is_main and self._answered_at != step and self._full_is_requested()
        if self._parallel.broadcast_object(requested):
            self._answered_at = step
            log.warning("an engine could not assemble the last version: publishing step=%d again, complete", step)
            with self._device.held(self._learner):
                self.publish(step)

    def publish(self, step: int) -> dict[str, float]:
        """With the device held: write, announce, prune. Returns seconds, bytes and kind.

        Raises LeaseLost if another trainer has started.
        """
        started = time.monotonic()
        state = self._files.gather()
        metrics = self._publish_main(step, state) if self._parallel.is_main else {}
        result: dict[str, float] = self._parallel.broadcast_object(metrics)
        return result | {"publish/seconds": time.monotonic() - started}

    def end(self) -> None:
        """Wait until the last version is on the disk, and for a running broadcast, within its limits. Raises DataError."""
        self._finish_flush()
        if self._broadcaster is not None:
            limits = self._broadcaster.settings
            self._bridge(self._broadcaster.end(), timeout_s=120 + limits.join_s + limits.limit_s)
        if self._server is not None:
            newest = self._bridge(self._store.versions.newest(self._config.policy))
            limit_s = 120 + self._config.publish.transport.broadcast_limit_s
            self._bridge(self._server.end(newest.version if newest else -1), timeout_s=limit_s)

    # ------------------------------------------------------------------ rank 0

    def _newest_whole(self, step: int) -> PolicyVersion | None:
        """The newest version; one of `step` itself that a power cut damaged is withdrawn before."""
        policy = self._config.policy
        newest = self._bridge(self._store.versions.newest(policy))
        if newest is None or newest.version == FIRST_VERSION or newest.step != step:
            return newest
        try:
            verify_version(newest)
        except DataError as exc:
            log.warning(
                "version %d is damaged: publishing the weights of step %d again cause=%s", newest.version, step, exc
            )
            self._bridge(self._store.versions.withdraw_after(policy, step - 1, self._trainer_generation))
            return self._bridge(self._store.versions.newest(policy))
        return newest

    def _finish_flush(self) -> None:
        if self._flush is not None:
            self._flush.result()

    def _publish_main(self, step: int, state: State) -> dict[str, float]:
        self._finish_flush()
        last = step == self._config.optimizer.max_steps
        due = self._config.publish.publish_mode == "delta" and self._since_full + 1 >= self._config.publish.full_every
        full = self._files.needs_full or due or last or self._full_is_requested()
        written = self._files.write(self._new_folder(step), state, full=full)
        version = self._announce(step, written, self._offer())
        self._flush = self._flusher.submit(flush_directory, written.path)
        self._since_full = 0 if full else self._since_full + 1
        if full:
            self._newest_full = version.version
        self._files.remember(version, state)
        self._prune()
        changed = written.changed_fraction
        return {
            "publish/bytes": float(written.bytes),
            "publish/full": float(full),
            **({} if changed is None else {"publish/changed_fraction": changed}),
            **(self._broadcaster.take_metrics() if self._broadcaster is not None else {}),
        }

    def _new_folder(self, step: int) -> Path:
        name = f"{step_folder(step)}-{self._trainer_generation}"
        again = len(list(self._folder.glob(f"{name}-again-[0-9]*"))) + 1
        return self._folder / (f"{name}-again-{again}" if (self._folder / name).exists() else name)

    def _offer(self) -> BroadcastOffer | None:
        return self._bridge(self._broadcaster.offer(), timeout_s=300) if self._broadcaster is not None else None

    def _announce(self, step: int, written: Written, offer: BroadcastOffer | None) -> PolicyVersion:
        self._serve(written)
        version = self._bridge(
            self._store.versions.announce(
                self._config.policy,
                step,
                str(written.path.resolve()),
                written.files,
                kind=written.kind,
                base=written.base,
                delta=written.delta,
                adapter=written.adapter,
                offer=offer,
                source=self._url,
                trainer_generation=self._trainer_generation,
            )
        )
        if self._broadcaster is not None and offer is not None:
            self._bridge(self._broadcaster.start(version))
        log.info("published version=%d step=%d kind=%s bytes=%d", version.version, step, version.kind, written.bytes)
        return version

    def _serve(self, *written: Written) -> None:
        """Serve the files that are not pruned, and those of versions that are announced next, if others pull them."""
        if self._server is not None:
            versions = self._bridge(self._store.versions.unpruned(self._config.policy))
            self._url = self._bridge(self._server.serve([*versions, *written]), timeout_s=300)

    def _full_is_requested(self) -> bool:
        requested = self._bridge(self._store.services.needs_full_weights(self._config.policy))
        return requested is not None and requested >= self._newest_full

    def _prune(self) -> None:
        """Delete files, never documents. Keeps the last `keep_versions`, versions with unfinished evaluation or with an engine
        for them alone, and the versions from which these are assembled."""
        versions = self._bridge(self._store.versions.unpruned(self._config.policy))
        awaited = self._bridge(self._store.evaluation.open_versions(self._config.policy))
        services = self._bridge(self._store.services.all())  # dead ones too: a keeper that starts again needs the files
        pinned = {s.serve_version for s in services if s.policy == self._config.policy}
        surviving = [v for v in versions if v.withdrawn_to is None]
        last = surviving[-self._config.publish.keep_versions :]
        needed = needed_for(
            [*last, *(v for v in surviving if v.version in {*awaited, *pinned} and v not in last)], versions
        )
        old = [v for v in versions if v.version not in needed and self._owns(v)]
        for version in old:
            shutil.rmtree(version.path, ignore_errors=True)
        if old:
            self._bridge(self._store.versions.mark_pruned(self._config.policy, [v.version for v in old]))

    def _owns(self, version: PolicyVersion) -> bool:
        return Path(version.path).parent == self._folder.resolve()


def needed_for(retained: Sequence[PolicyVersion], versions: Sequence[PolicyVersion]) -> set[int]:
    """The kept versions, and the chain of changes of each back to a complete one."""
    needed = set()
    for version in retained:
        for ancestor in ancestors(version, versions):
            needed.add(ancestor.version)
            if ancestor.kind == "full":
                break
    return needed
