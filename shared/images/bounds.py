"""What an image may cost, and where it may come from."""

from dataclasses import dataclass

from shared.errors import DataError

IMAGE_ROLES = (
    "user",
    "tool",
)  # whose messages may have images; read in workers too, which have the standard library alone

BYTES_PER_PIXEL = (
    48  # of the decoding process: an animated WebP has four canvases of 4 bytes, alpha over white five more
)
BASE_BYTES = 256 * 1024**2  # Python, Pillow, and a file of 20 MB twice


@dataclass(frozen=True)
class ImageBounds:
    """A caller's bounds. `image_hosts` names the hosts from which an http(s) URL is fetched; none by default."""

    max_bytes: int = 20_000_000  # of the file
    max_pixels: int = 16_000_000  # read from the header, before anything is decompressed
    max_images: int = 64  # of one conversation or task
    cpu_s: float = 10.0  # processor time of one image; the kernel rounds up to whole seconds
    absolute_paths: bool = (
        False  # True: also absolute paths, and those that lead out of the folder of the file that names them
    )
    image_hosts: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Address space of the decoding process."""
        return BASE_BYTES + BYTES_PER_PIXEL * self.max_pixels

    def check_count(self, count: int, where: str) -> None:
        """Raises DataError if a conversation or task has more images than `max_images`."""
        if count > self.max_images:
            raise DataError(f"{where}: {count} images; expected {self.max_images} at most")
