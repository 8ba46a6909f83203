"""A publisher over a tiny model that a test nudges by hand, and what a follower of its versions can reach."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from shared.documents.run import Admission, InferenceService, PolicyVersion
from shared.documents.states import ServiceStatus
from shared.processes.mongod import Mongod
from shared.weights.assembly import Assembly, Reached
from shared.weights.files import manifest_of
from tests.trainer.builders import tiny_model
from trainer.losses import LossConfig
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.publish import Publisher
from trainer.publishing.weights import write_weights
from trainer.settings.config import TrainerConfig
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import LearnerOptions, open_learner
from trainer.step.shared_device import TrainerDevice

RUN = "publish-test"


@contextmanager
def publish_bridge(mongod: Mongod) -> Iterator[StoreBridge]:
    with StoreBridge(mongod.connection_string, RUN) as bridge:
        yield bridge
        bridge(bridge.store.client.drop_database(RUN))


class Publishing:
    """Of the model in `folder/model`."""

    def __init__(self, bridge: StoreBridge, parallel: Parallel, folder: Path, **options: Any) -> None:
        self.bridge, self.parallel, self.folder = bridge, parallel, folder
        self.model = folder / "model"
        self.config = TrainerConfig(
            run=RUN, db_connection_string="given", model_name_or_path=self.model, output_dir=folder / "out", **options
        )
        self.learner = open_learner(
            self.model,
            LossConfig(),
            OptimizerConfig(),
            parallel,
            LearnerOptions(trainable=self.config.model.trainable(self.config.seed), dtype=self.config.model.dtype),
        )
        self.start()

    def start(self) -> None:
        admission = Admission(groups_per_step=1, max_staleness=1)
        trainer_generation = self.bridge(self.bridge.store.runs.start_trainer("main", admission))
        device = TrainerDevice(self.bridge, self.config.sharing, self.parallel, "trainer")
        self.publisher = Publisher(self.bridge, self.config, self.parallel, self.learner, device)
        self.publisher.check()
        self.publisher.begin(trainer_generation)

    def nudge(self, step: int, change: Callable[[torch.Tensor], object]) -> None:
        """`change` every trained parameter in place, by the random numbers of this step."""
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in self.learner.causal_lm.parameters():
                if parameter.requires_grad:
                    change(parameter)

    def versions(self) -> list[PolicyVersion]:
        return self.bridge(self.bridge.store.versions.all("main"))

    def reach(self, number: int, newer_than: int = -1, cache: str = "cache") -> Reached:
        versions = self.versions()
        return Assembly(self.folder / cache).reach(versions[number], versions, newer_than)

    def ask_for_full(self, version: int) -> None:
        service = InferenceService(
            id="e",
            url="e",
            policy="main",
            version=-1,
            status=ServiceStatus.DOWN,
            needs_full_weights=version,
            heartbeat_s=3600,
        )
        self.bridge(self.bridge.store.services.heartbeat(service))


class Trained(Publishing):
    """In float32; beside every version lie the same weights in full."""

    def __init__(self, bridge: StoreBridge, parallel: Parallel, folder: Path, **options: Any) -> None:
        tiny_model().float().save_pretrained(folder / "model")
        super().__init__(bridge, parallel, folder, **{"publish_mode": "delta", **options})

    def step(self, step: int) -> dict[str, float]:
        """Change one number in ten of every tensor a little; publish."""
        self.nudge(step, lambda local: local.mul_(torch.where(torch.rand_like(local) < 0.1, 1.01, 1.0)))
        expected = self.folder / "expected" / str(step)
        shutil.rmtree(expected, ignore_errors=True)
        write_weights(
            self.learner.causal_lm, self.model, expected, self.parallel, dtype=self.config.publish.publish_dtype
        )
        return self.publisher.publish(step)

    def assert_whole(self, reached: Reached) -> None:
        expected = manifest_of(self.folder / "expected" / str(reached.version.step))
        assert {name: manifest_of(reached.folder)[name] for name in expected} == expected
