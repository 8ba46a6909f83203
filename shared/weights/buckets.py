"""A safetensors file cut into buckets: runs of whole tensors as they lie in it, so that a bucket's bytes are the file's.

The sender of a published version and its receivers cut the same file, by its header alone, into the same
buckets; the receiver says of each which names, types and shapes are to come. Torch-free.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from shared.errors import DataError
from shared.weights.tensor_file import FileTensor, tensors_of


@dataclass(frozen=True, slots=True)
class Bucket:
    """Never empty; the bytes `start` to `end` of the file."""

    tensors: tuple[FileTensor, ...]

    @property
    def start(self) -> int:
        return self.tensors[0].start

    @property
    def end(self) -> int:
        return self.tensors[-1].end


def buckets_of(file: Path, limit_bytes: int) -> list[Bucket]:
    """The whole file; a bucket holds more than `limit_bytes` only where one tensor does.

    Raises DataError where the header cannot be read, or describes what cannot be cut in this way.
    """
    buckets: list[list[FileTensor]] = []
    for tensor in tensors_of(file):
        if not buckets or tensor.end - buckets[-1][0].start > limit_bytes:
            buckets.append([])
        bucket = buckets[-1]
        bucket.append(tensor)
        if (tensor.start - bucket[0].start) % max(1, (tensor.end - tensor.start) // max(1, prod(tensor.shape))):
            raise DataError(f"{file}: tensor {tensor.name} is not aligned behind {bucket[0].name}")
    return [Bucket(tuple(bucket)) for bucket in buckets]
