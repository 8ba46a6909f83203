"""Routed experts: which experts of a mixture computed each token of a request, as the engine chose them.

    tokens of the request     [sys  q  tool | a0  a1  a2]      3 tokens shared with the parent, 3 sampled
    routed experts                     ▲▲▲▲   ▲▲  ▲▲           of all that the engine computed: not of the last one

An array [tokens, choices], one byte an expert (two where there are more than 256), is stored once under the SHA-256 of its bytes.
The choices of a token are those of each layer, one layer after the other; a layer without experts is left out or has zeros. 48
layers that choose 8 of 128 experts each: 384 bytes a token. They are not compressed: zlib saves 12 to 16 %. A token that several
requests computed keeps the experts of the first.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import Field

from shared.documents.base import Document

if TYPE_CHECKING:  # numpy: for runs that have some
    import numpy as np
    import numpy.typing as npt

    from shared.documents.expert_array import Experts

EXPERT_CHUNK_BYTES = 8_000_000  # MongoDB's limit per document is 16 MB


class RoutedExperts(Document):
    """The routed experts of a request's tokens from place `first` of its prompt and reply on. The bytes lie in
    `routed_experts`."""

    sha256: str  # of the bytes, hexadecimal
    first: int = Field(ge=0)  # at most one token before those that the request adds: its parent's last one
    count: int = Field(ge=1)  # tokens
    choices: int = Field(ge=1)  # of each token, in all layers
    num_bytes: int = Field(ge=1)

    @property
    def chunks(self) -> list[str]:
        """Ids of the documents that have its bytes."""
        return [chunk_name(self.sha256, number) for number in range(-(-self.num_bytes // EXPERT_CHUNK_BYTES))]


class ExpertChunk(Document):
    """`EXPERT_CHUNK_BYTES` of an array; fewer in its last one."""

    collection: ClassVar[str] = "routed_experts"

    id: str = Field(alias="_id")  # sha256:number
    data: bytes
    created_at: datetime | None = None


class PackedExperts(NamedTuple):
    """An array as bytes, and the field of the dispatch that names it."""

    described: RoutedExperts
    data: bytes

    def documents(self) -> Iterator[ExpertChunk]:
        for number, start in enumerate(range(0, len(self.data), EXPERT_CHUNK_BYTES)):
            data = self.data[start : start + EXPERT_CHUNK_BYTES]
            yield ExpertChunk(id=chunk_name(self.described.sha256, number), data=data)


def chunk_name(sha256: str, number: int) -> str:
    return f"{sha256}:{number}"


def pack_experts(experts: "npt.NDArray[np.integer]", first: int) -> PackedExperts:
    """Of an array [tokens, choices]. Raises ValueError for experts that no 16 bits hold, and for no tokens."""
    count, choices = experts.shape
    if not experts.size or experts.min() < 0 or experts.max() >= 2**16:
        raise ValueError(f"routed experts of shape {experts.shape}; expected some, from 0 to {2**16 - 1}")
    data = experts.astype("<u1" if experts.max() < 2**8 else "<u2").tobytes()
    name = hashlib.sha256(data).hexdigest()
    return PackedExperts(
        RoutedExperts(sha256=name, first=first, count=count, choices=choices, num_bytes=len(data)), data
    )


def unpack_experts(described: RoutedExperts, data: bytes) -> "Experts":
    """The array. Raises ValueError for bytes of another number or digest."""
    import numpy as np

    width, rest = divmod(len(data), described.count * described.choices)
    if rest or width not in (1, 2) or hashlib.sha256(data).hexdigest() != described.sha256:
        raise ValueError(
            f"routed experts {described.sha256[:12]}: {len(data)} bytes of another digest or number; expected "
            f"{described.num_bytes}, of {described.count} tokens with {described.choices} choices each"
        )
    array: Experts = np.frombuffer(data, dtype="<u1" if width == 1 else "<u2").reshape(
        described.count, described.choices
    )
    return array
