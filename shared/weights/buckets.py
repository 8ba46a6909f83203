"""Splits a safetensors file into buckets: runs of whole tensors in file order, so that a bucket is a byte range of the file.

Sender and receivers of a published version split the same file into the same buckets, from its header alone; the receiver
derives the names, types and shapes of each bucket. Torch-free.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from shared.errors import DataError
from shared.weights.tensor_file import FileTensor, tensors_of


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bytes `start` to `end` of the file; never empty."""

    tensors: tuple[FileTensor, ...]

    @property
    def start(self) -> int:
        return self.tensors[0].start

    @property
    def end(self) -> int:
        return self.tensors[-1].end


def buckets_of(file: Path, limit_bytes: int) -> list[Bucket]:
    """Split the whole file; a bucket exceeds `limit_bytes` only if a single tensor does.

    Raises DataError if the header is unreadable or the file cannot be split in this way.
    """
    buckets: list[list[FileTensor]] = []
    for tensor in tensors_of(file):
        if not buckets or tensor.end - buckets[-1][0].start > limit_bytes:
            buckets.append([])
        bucket = buckets[-1]
        bucket.append(tensor)
        if (tensor.start - bucket[0].start) % max(1, (tensor.end - tensor.start) // max(1, prod(tensor.shape))):
            raise DataError(f"{file}: tensor {tensor.name} is not aligned after {bucket[0].name}")
    return [Bucket(tuple(bucket)) for bucket in buckets]
