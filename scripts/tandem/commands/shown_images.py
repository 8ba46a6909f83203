"""Images of an episode as files: `tandem show --images`."""

import asyncio
from pathlib import Path

from shared.episodes.images import EpisodeImages
from shared.errors import DataError
from shared.files.written_file import written_whole
from shared.images.header import header_of
from shared.store import Store
from tandem.commands.connect import console, warn


async def write_images(store: Store, images: EpisodeImages, folder: Path) -> None:
    """`SHA256.png`, each file as it is stored, for this user alone. Raises DataError for a folder that cannot be written, and for
    images that cannot be read, after all others."""
    num_missing = 0
    for sha256 in images.digests:
        try:
            data = await store.images.read(sha256)
            suffix = header_of(data, f"image {sha256}").format.lower()
        except DataError as exc:
            warn(str(exc))
            num_missing += 1
            continue
        path = folder / f"{sha256}.{suffix}"
        await asyncio.to_thread(_write, path, data)
        console().print(str(path), soft_wrap=True, markup=False)
    if num_missing:
        raise DataError(f"{num_missing} of {len(images.digests)} images cannot be read")


def _write(path: Path, data: bytes) -> None:
    with written_whole(path) as temporary:
        temporary.write_bytes(data)
