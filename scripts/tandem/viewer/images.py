"""Images on pages: their files, which are in the store, their size as thumbnails, and which of them are there.

A file is served as it was stored, with the type that its first bytes have: one of five formats, none of which runs scripts.
Its name is its digest, so a browser keeps it for good.
"""

from collections.abc import Sequence
from dataclasses import replace

from starlette.responses import Response

from shared.episodes.images import EpisodeImage, EpisodeImages, is_digest, num_bytes_text
from shared.errors import DataError
from shared.images.header import header_of
from shared.store import Store
from shared.store.views.query import Query
from shared.store.views.rollouts import images_query
from tandem.viewer.page_request import NotThere, PageRequest

MEDIA_TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
}
THUMBNAIL_PIXELS = (320, 240)  # at most, width and height
LEAST_PIXELS = 24  # of a side: what is smaller is hard to click
KEPT = "private, max-age=31536000, immutable"


async def image_file(request: PageRequest) -> Response:
    """The file of a digest. Raises NotThere, also for a file of another format."""
    sha256 = request.id("sha256")
    if not is_digest(sha256):
        raise NotThere(
            f"{sha256[:80]!r} names no image; expected the 64 hexadecimal digits of its SHA-256, in lower case"
        )
    etag = f'"{sha256}"'
    if request.request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"etag": etag, "cache-control": KEPT})
    try:
        data = await request.store.images.read(sha256)
        media_type = MEDIA_TYPES[header_of(data, f"image {sha256}").format]
    except DataError as exc:
        raise NotThere(f"run {request.run.name}: {exc}") from exc
    name = f"{sha256[:16]}.{media_type.removeprefix('image/')}"
    headers = {"etag": etag, "cache-control": KEPT, "content-disposition": f'inline; filename="{name}"'}
    return Response(data, media_type=media_type, headers=headers)


async def known_images(store: Store, images: EpisodeImages) -> tuple[EpisodeImages, list[Query]]:
    """With those that are not in the store as missing, and what was asked: nothing of an episode without images."""
    digests = images.digests
    if not digests:
        return images, []
    query = images_query(digests)
    present = {str(document["_id"]) for document in await query.run(store.database)}
    return replace(images, missing=frozenset(digests) - present), [query]


def thumbnail(image: EpisodeImage) -> tuple[int, int] | None:
    """Width and height within `THUMBNAIL_PIXELS`; None if the image's size is unknown."""
    if not image.width or not image.height:
        return None
    most_width, most_height = THUMBNAIL_PIXELS
    scale = min(
        most_width / image.width, most_height / image.height, max(1.0, LEAST_PIXELS / min(image.width, image.height))
    )
    return max(1, round(scale * image.width)), max(1, round(scale * image.height))


def alternative_text(image: EpisodeImage) -> str:
    """For readers of screens. No document has a description of the picture."""
    size = f" of {image.width} × {image.height} pixels" if image.width else ""
    return f"image{size}, SHA-256 {image.sha256[:8]}…"


def caption(image: EpisodeImage) -> str:
    """`640 × 480 · 31.0 kB · 64 tokens`"""
    parts: Sequence[str] = (
        f"{image.width} × {image.height}" if image.width else "",
        num_bytes_text(image.num_bytes) if image.num_bytes else "",
        "" if image.tokens is None else f"{image.tokens:,} tokens",
    )
    return " · ".join(part for part in parts if part) or "image"
