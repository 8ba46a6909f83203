"""The tensors of the last published version, kept in rank 0's host memory to compute the changes.

Takes as much host memory as one published copy of the weights. Only changes are written: the complete file's checksum is
computed from its header (constant over versions) and the tensors in its order.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shared.documents.run import FileEntry
from shared.weights.deltas import DeltaSize, Region, write_delta
from shared.weights.tensor_file import tensors_of

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a safetensors file. `tensors`: (name, offset in the file, bytes), in file order."""

    header: bytes
    tensors: tuple[tuple[str, int, int], ...]

    @classmethod
    def read(cls, file: Path) -> "FileLayout":
        """Raises DataError where it is not a whole one."""
        tensors = tensors_of(file)
        with file.open("rb") as opened:
            header = opened.read(tensors[0].start)
        return cls(header, tuple((tensor.name, tensor.start, tensor.end - tensor.start) for tensor in tensors))


@dataclass(frozen=True, slots=True)
class PublishedCopy:
    """A published `version`: its tensors and the description of its complete files."""

    version: int
    state: State
    layout: FileLayout
    files: Mapping[str, FileEntry]

    def write_changes(self, target: Path, state: State, threads: int) -> DeltaSize:
        """Write the changes by `state` to the new file `target`; names, types and shapes of tensors must match."""
        return write_delta(target, self._regions(state), threads)

    def entry_with(self, state: State) -> FileEntry:
        """The entry of the complete weights file with `state`."""
        digest = hashlib.sha256(self.layout.header)
        for name, _, _ in self.layout.tensors:
            digest.update(_bytes_of(state[name]).data)
        return {"sha256": digest.hexdigest(), "bytes": sum(self.layout.tensors[-1][1:])}

    def _regions(self, state: State) -> Iterator[Region]:
        for name, offset, _ in self.layout.tensors:
            old, new = self.state[name], state[name]
            yield Region(offset, new.element_size(), _bytes_of(old), _bytes_of(new))


def _bytes_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    data: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return data
