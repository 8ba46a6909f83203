"""The files of a version's directory, by `publish_mode`; `trainer.publishing.publish` decides when, and announces them.

    full       model.safetensors, config.json, …         the complete Hugging Face directory, every time
    delta      weights.delta                             the changes since the previous version; periodically a complete one
    adapter    adapter/adapter_model.safetensors, …      the adapter of version 0; a complete one on request

In each mode `Written.files` describes the complete directory, whether it was written or followers assemble it. Nothing is flushed
to disk here: engines read the new files at once.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from shared.documents.run import FileEntry, PolicyVersion, VersionKind
from shared.errors import ConfigError, DataError
from shared.weights.adapters import ADAPTER_FOLDER, base_matrices, merge_into, merged_files
from shared.weights.deltas import DeltaSize
from shared.weights.files import DELTA_FILE, WEIGHTS_FILE, manifest_of, verify_files
from trainer.checkpoints.atomic_directories import write_directory_atomically
from trainer.modeling.model import DTYPES
from trainer.process.parallel import Parallel
from trainer.publishing.adapter import AdaptedLayers, gather_adapter, write_adapter
from trainer.publishing.published_copy import FileLayout, PublishedCopy
from trainer.publishing.weights import gather_state, write_files
from trainer.settings.config import TrainerConfig
from trainer.step.learner import Learner

State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Written:
    """A version's directory before it is announced. `base`: the version to which `delta` or `adapter` is applied."""

    path: Path
    kind: VersionKind
    files: Mapping[str, FileEntry]
    base: int | None = None
    delta: FileEntry | None = None
    adapter: Mapping[str, FileEntry] | None = None
    changed_fraction: float | None = None

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())


class VersionFiles(Protocol):
    """One publish mode, over one start of the trainer."""

    @property
    def needs_full(self) -> bool:
        """Whether the next version must be complete."""
        ...

    def begin(self, first: Mapping[str, FileEntry]) -> None:
        """`first`: the files of version 0, the run's initial model. On rank 0."""
        ...

    def gather(self) -> State:
        """The tensors to write, on rank 0; empty on other ranks. Every rank must call it."""
        ...

    def write(self, target: Path, state: State, *, full: bool) -> Written:
        """Write the new directory `target`, which has yet to be flushed. On rank 0."""
        ...

    def remember(self, version: PolicyVersion, state: State) -> None:
        """Keep the announced version for later changes. On rank 0."""
        ...


def verify_version(version: PolicyVersion) -> None:
    """Raises DataError unless the directory of `version` has the announced files."""
    folder = Path(version.path)
    if version.kind == "full":
        verify_files(folder, version.files)
    if version.delta is not None:
        verify_files(folder, {DELTA_FILE: version.delta})
    if version.adapter is not None:
        verify_files(folder / ADAPTER_FOLDER, version.adapter)


def version_files(config: TrainerConfig, learner: Learner, parallel: Parallel) -> VersionFiles:
    """By `publish_mode`. Every rank must call it."""
    if config.publish.publish_mode == "adapter":
        return AdapterFiles(config, learner, parallel)
    return WeightFiles(config, learner, parallel)


class WeightFiles:
    """Modes full and delta."""

    def __init__(self, config: TrainerConfig, learner: Learner, parallel: Parallel) -> None:
        self._config = config
        self._learner = learner
        self._parallel = parallel
        self._last: PublishedCopy | None = None  # last version published by this process; rank 0 in mode delta

    @property
    def needs_full(self) -> bool:
        return self._last is None

    def begin(self, first: Mapping[str, FileEntry]) -> None:
        """No effect: these modes do not need version 0."""

    def gather(self) -> State:
        dtype = DTYPES[self._config.publish.publish_dtype] if self._config.publish.publish_dtype else None
        return gather_state(self._learner.causal_lm, self._parallel, dtype)

    def write(self, target: Path, state: State, *, full: bool) -> Written:
        size = DeltaSize(0, 0, 0)

        def fill(temporary: Path) -> None:
            nonlocal size
            if full:
                write_files(temporary, self._config.model.model_name_or_path, self._learner.causal_lm, state)
            if self._last is not None:
                size = self._last.write_changes(temporary / DELTA_FILE, state, torch.get_num_threads())

        write_directory_atomically(target, fill, flush=False)
        files: dict[str, FileEntry] = manifest_of(target)
        delta = files.pop(DELTA_FILE, None)
        written = Written(target, "full" if full else "delta", files)
        if self._last is None or delta is None:
            return written
        if not full:
            written = replace(written, files={**self._last.files, WEIGHTS_FILE: self._last.entry_with(state)})
        changed = size.changed / max(size.items, 1)
        return replace(written, base=self._last.version, delta=delta, changed_fraction=changed)

    def remember(self, version: PolicyVersion, state: State) -> None:
        if self._config.publish.publish_mode == "delta":
            retained = {name: tensor.clone() for name, tensor in state.items()} if self._aliases else state
            layout = FileLayout.read(Path(version.path) / WEIGHTS_FILE) if self._last is None else self._last.layout
            self._last = PublishedCopy(version.version, retained, layout, version.files)

    @property
    def _aliases(self) -> bool:
        """Whether gathered tensors may be the parameters themselves, which the next step changes (on the CPU)."""
        return self._parallel.device.type == "cpu"


class AdapterFiles:
    """Mode adapter: the base of every version is version 0, whose frozen matrices equal the trainer's."""

    needs_full = False

    def __init__(self, config: TrainerConfig, learner: Learner, parallel: Parallel) -> None:
        self._config = config
        self._learner = learner
        self._parallel = parallel
        self._base = config.model.model_name_or_path
        self._first: Mapping[str, FileEntry] = {}
        self._layers = AdaptedLayers.of(learner.causal_lm, parallel)

    def begin(self, first: Mapping[str, FileEntry]) -> None:
        """Raises ConfigError if engines could not reproduce the trainer's weights from the base's files."""
        self._first = first
        try:
            matrices = list(base_matrices(self._base, self._layers.shapes))
        except DataError as exc:
            raise ConfigError(f"publish_mode adapter: {exc}; expected publish_mode full or delta") from exc
        own = self._config.model.dtype
        held = DTYPES[own]
        for file, matrix, _ in matrices:
            if torch.promote_types(held, getattr(torch, matrix.dtype)) != held:
                raise ConfigError(
                    f"publish_mode adapter: engines add the adapter to {matrix.name} of {file} in {matrix.dtype}; "
                    f"the trainer computes with it in {own}: expected dtype {matrix.dtype}, or publish_mode full"
                )

    def gather(self) -> State:
        return gather_adapter(self._learner.causal_lm, self._parallel)

    def write(self, target: Path, state: State, *, full: bool) -> Written:
        files: Mapping[str, FileEntry] = {}
        threads = torch.get_num_threads()

        def fill(temporary: Path) -> None:
            nonlocal files
            lora = self._config.model.lora
            assert lora is not None  # a validator's promise
            adapter = write_adapter(temporary / ADAPTER_FOLDER, self._layers.targets, state, lora, self._base)
            if full:
                for name in self._first:
                    shutil.copyfile(self._base / name, temporary / name)
                merge_into(temporary, adapter, threads)
            else:
                files = merged_files(self._base, self._first, adapter, threads)

        write_directory_atomically(target, fill, flush=False)
        return Written(
            target,
            "full" if full else "adapter",
            manifest_of(target) if full else files,
            base=0,
            adapter=manifest_of(target / ADAPTER_FOLDER),
        )

    def remember(self, version: PolicyVersion, state: State) -> None:
        """No effect: versions are independent of each other."""
