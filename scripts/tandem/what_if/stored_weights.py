"""The weights of a policy that are still on disk: published versions, and checkpoints of the steps between them.

policy_versions, not pruned ─▶ assembled (full, delta, adapter), checked byte by byte ─┐
OUTPUT_DIR/checkpoints/step-N, of steps without a kept version ────────────────────────┴─▶ TreeLM
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from shared.documents.run import PolicyVersion
from shared.errors import DataError
from shared.files.output_names import CHECKPOINTS, STEP_FOLDER
from shared.store import Store
from shared.weights.assembly import Assembly
from trainer.checkpoints.restore import TRAINED, load_tensors, without_frozen
from trainer.export import source_of, stored_dtype, trainable_of
from trainer.modeling.forward import TreeLM
from trainer.modeling.forward_choice import choose_forward_mode
from trainer.modeling.forward_ways import OWN, tree_obstacle
from trainer.modeling.model import load_model
from trainer.settings.trained_parts import Trainable


@dataclass(frozen=True, slots=True)
class Kept:
    """The weights after `step` steps. `version`: their number, if they were published; `folder`: of their checkpoint, else."""

    step: int
    version: PolicyVersion | None
    folder: Path | None = None

    def __str__(self) -> str:
        return f"v{self.version.version}" if self.version is not None else "checkpoint"


class StoredWeights:
    """`all`: by step. Only the surviving history: weights that a resume withdrew are no part of what a step led to."""

    def __init__(self, published: Sequence[PolicyVersion], run_dir: Path, cache: Path, device: str) -> None:
        self._published, self._device = published, device
        self._assembly = Assembly(cache)
        versions = [v for v in published if not v.pruned and v.withdrawn_to is None and v.path]
        by_step = {v.step: Kept(v.step, v) for v in versions}
        for path in sorted((run_dir / CHECKPOINTS).glob("step-*")):
            match = STEP_FOLDER.fullmatch(path.name)
            if match and (step := int(match[1])) not in by_step:
                by_step[step] = Kept(step, None, path)
        self.all = [by_step[step] for step in sorted(by_step)]

    def of_version(self, number: int) -> Kept | None:
        """The weights of one version: its files, or the checkpoint of its step."""
        version = next((v for v in self._published if v.version == number), None)
        if version is None:
            return None
        if version.withdrawn_to is not None:  # no checkpoint of its step is of its history
            return None if version.pruned or not version.path else Kept(version.step, version)
        return next((stored for stored in self.all if stored.step == version.step), None)

    def load(self, stored: Kept) -> TreeLM:
        """Raises DataError for damaged files."""
        if stored.folder is not None:
            return self._on_device(_checkpoint(stored.folder))
        assert stored.version is not None, "weights are a version or a checkpoint"
        reached = self._assembly.reach(stored.version, self._published, newer_than=stored.version.version)
        lm = TreeLM(load_model(reached.folder, attn_implementation=OWN.attention))
        self._assembly.keep_only(stored.version.version)
        return self._on_device(lm)

    def _on_device(self, lm: TreeLM) -> TreeLM:
        lm = lm.to(self._device)
        choose_forward_mode(lm, "auto", torch.device(self._device), obstacle=tree_obstacle(lm.causal_lm.config))
        return lm


@contextmanager
def kept_weights(published: Sequence[PolicyVersion], run_dir: Path, device: str) -> Iterator[StoredWeights]:
    with tempfile.TemporaryDirectory(prefix="tandem-weights-") as cache:
        yield StoredWeights(published, run_dir, Path(cache), device)


async def published_versions(store: Store, policy: str) -> list[PolicyVersion]:
    """Raises DataError for a run that was trained on the data of another one."""
    run = await store.runs.read()
    other = (await store.settings.of_trainer(run, policy)).get("data_run")
    if other:
        raise DataError(
            f"run {store.run} trains offline: its episodes were sampled by the versions of run {other}; ask that run"
        )
    return await store.versions.all(policy)


def _checkpoint(folder: Path) -> TreeLM:
    trainable: Trainable = trainable_of(folder)
    model = load_model(
        source_of(folder), dtype=stored_dtype(folder), trainable=trainable, attn_implementation=OWN.attention
    )
    lm = TreeLM(model)
    tensors = {"model": without_frozen(lm, get_model_state_dict(lm, options=TRAINED))}
    load_tensors(folder, tensors)
    set_model_state_dict(lm, tensors["model"], options=TRAINED)
    return lm
