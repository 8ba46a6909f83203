"""Images of messages, tool results and observations: each distinct file is stored once, under the SHA-256 of its bytes."""

from collections.abc import Iterator
from datetime import datetime
from typing import ClassVar, NamedTuple

from pydantic import Field

from shared.documents.base import Document

MAX_INLINE_BYTES = 8_000_000  # in the image's own document; MongoDB's limit per document is 16 MB
CHUNK_BYTES = 4_000_000


class ImageFile(NamedTuple):
    """A file as it came, and what its decoding found."""

    sha256: str  # hexadecimal, of `data`
    data: bytes
    format: str  # "PNG", "JPEG", "WEBP", "GIF" or "BMP"
    width: int  # of the picture, after EXIF orientation
    height: int


class StoredImage(Document):
    """One image. `data` is None where the bytes lie in `num_chunks` documents of `image_chunks`, which are written before it."""

    collection: ClassVar[str] = "images"

    id: str = Field(alias="_id")  # SHA-256 of the bytes, hexadecimal
    data: bytes | None
    num_chunks: int = 0
    num_bytes: int
    format: str
    width: int
    height: int
    created_at: datetime | None = None

    @classmethod
    def of(cls, file: ImageFile) -> "StoredImage":
        num_bytes = len(file.data)
        inline = num_bytes <= MAX_INLINE_BYTES
        return cls(
            id=file.sha256,
            data=file.data if inline else None,
            num_chunks=0 if inline else -(-num_bytes // CHUNK_BYTES),
            num_bytes=num_bytes,
            format=file.format,
            width=file.width,
            height=file.height,
        )


class PlacedImage(Document):
    """An image in the tokens of a request. Its placeholders are the first `count` tokens with the id of token `first`, from there
    on; `grid`: (time, height, width) of its features, for models whose positions have three parts."""

    sha256: str
    first: int  # index in the `prompt_ids` of the request
    count: int
    grid: tuple[int, int, int] | None = None


class ImageChunk(Document):
    """`CHUNK_BYTES` of a large image; fewer in the last one."""

    collection: ClassVar[str] = "image_chunks"

    id: str = Field(alias="_id")  # sha256:number
    data: bytes
    created_at: datetime | None = None


def chunk_id(sha256: str, number: int) -> str:
    return f"{sha256}:{number}"


def chunks_of(file: ImageFile) -> Iterator[ImageChunk]:
    """None for an image whose document has its bytes."""
    if len(file.data) > MAX_INLINE_BYTES:
        for number, start in enumerate(range(0, len(file.data), CHUNK_BYTES)):
            yield ImageChunk(id=chunk_id(file.sha256, number), data=file.data[start : start + CHUNK_BYTES])
