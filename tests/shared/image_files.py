"""Valid and hostile image files, made by Pillow or byte by byte."""

import functools
import hashlib
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
from PIL import Image

from shared.documents.images import ImageFile

# (format, mode, options of Pillow's `save`)
FORMS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("PNG", "1", {}),
    ("PNG", "L", {}),
    ("PNG", "LA", {}),
    ("PNG", "P", {}),
    ("PNG", "P", {"transparency": 3}),
    ("PNG", "RGB", {}),
    ("PNG", "RGB", {"transparency": (0, 0, 0)}),
    ("PNG", "RGBA", {}),
    ("PNG", "I;16", {}),
    ("JPEG", "L", {}),
    ("JPEG", "RGB", {}),
    ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    ("JPEG", "CMYK", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGBA", {}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("GIF", "L", {}),
    ("GIF", "P", {}),
    ("GIF", "P", {"transparency": 3}),
    ("BMP", "1", {}),
    ("BMP", "L", {}),
    ("BMP", "P", {}),
    ("BMP", "RGB", {}),
    ("BMP", "RGBA", {}),
)


def form_id(form: tuple[str, str, dict[str, Any]]) -> str:
    kind, mode, options = form
    return "-".join([kind, mode, *options])


def painted(mode: str, width: int = 37, height: int = 23) -> Image.Image:
    """The same pixels at every call: smooth, with noise."""
    rows, columns = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(7).integers(0, 40, (height, width, 4))
    rgba = np.stack([rows * 5, columns * 4, rows + columns, 255 - columns * 3], -1) % 200 + noise
    if mode == "I;16":
        return Image.fromarray((rgba[..., 0] * 257).astype(np.uint16))
    image = Image.fromarray(rgba.astype(np.uint8), "RGBA")
    return image if mode == "RGBA" else image.convert("RGB").convert(mode) if mode != "LA" else image.convert("LA")


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def valid(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    return saved(painted(mode), kind, **options)


def image_file(data: bytes) -> ImageFile:
    """For the store, which does not decode."""
    return ImageFile(hashlib.sha256(data).hexdigest(), data, "PNG", width=3, height=2)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *before: bytes, packed: bytes | None = None, after: bytes = b"") -> bytes:
    """Black, 8 bits of gray. `before`, `after`: chunks around the pixels. `packed`: content of IDAT instead of these pixels."""
    pixels = packed if packed is not None else zlib.compress(bytes(height * (width + 1)), 9)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    parts = [b"\x89PNG\r\n\x1a\n", header, *before, chunk(b"IDAT", pixels), after, chunk(b"IEND", b"")]
    return b"".join(parts)


@functools.cache
def deflated(num_mebibytes: int) -> bytes:
    """Zeros, compressed to a thousandth: one compressed mebibyte, repeated."""
    packer = zlib.compressobj(9, wbits=-15)
    part = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = ((num_mebibytes << 20) % 65521 << 16) + 1  # Adler-32 of zeros
    return b"\x78\xda" + part * num_mebibytes + b"\x03\0" + struct.pack(">I", checksum)


def jpeg_of_many_scans(repeats: int) -> bytes:
    """A progressive JPEG whose last scan comes `repeats` times: some KB each, and all coefficients are gone through for each."""
    data = saved(Image.new("L", (3000, 3000), 90), "JPEG", progressive=True)
    at, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:at] + data[at:end] * repeats + b"\xff\xd9"


def decoders() -> Iterator[psutil.Process]:
    """The decoding processes of this process."""
    for child in psutil.Process().children():
        try:
            if "shared.images.worker" in child.cmdline():
                yield child
        except psutil.NoSuchProcess:
            continue


def peak_bytes(process: psutil.Process, name: str) -> int:
    """`name`: VmPeak, address space; VmHWM, memory."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(f"{name}:"))
