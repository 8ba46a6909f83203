"""Format and size of an image, from its first bytes: nothing is decompressed, and no decoder of another library runs.

The content decides, not the name: a PNG that is called `.jpg` is a PNG, and an SVG that is called `.png` is refused.
"""

import base64
import struct
from dataclasses import dataclass

from shared.errors import DataError

EXPECTED = "expected PNG, JPEG, WebP, GIF or BMP"
SHOWN_BYTES = 8  # of an unknown type
DATA_URL = "data:image/"  # how the URL of an image begins
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of JPEG that are followed by the size
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_BMP_HEADERS = frozenset({40, 52, 56, 64, 108, 124})  # bytes of those with a size of 32 bits
_OS2_HEADER = 12  # bytes; its size has 16 bits
_REFUSED = (
    (b"%PDF", "PDF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\1\0", "ICO"),
    (b"8BPS", "PSD"),
    (b"%!PS", "PostScript"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"PK\3\4", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"version https://git-lfs", "a Git LFS pointer (`git lfs pull` fetches the file)"),
)


@dataclass(frozen=True, slots=True)
class Header:
    """`width` and `height` are those of the file, before EXIF orientation."""

    format: str  # "PNG", "JPEG", "WEBP", "GIF" or "BMP"
    width: int
    height: int


def header_of(data: bytes, where: str) -> Header:
    """Raises DataError for any other type, and for a header that is cut off or contradicts itself."""
    for begins_with, name, size in _FORMATS:
        if data.startswith(begins_with) and (name != "WEBP" or data[8:12] == b"WEBP"):
            try:
                width, height = size(data)
            except (struct.error, IndexError, ValueError) as exc:
                why = f" ({exc})" if isinstance(exc, ValueError) else ""
                raise DataError(f"{where}: a {name} file whose header is cut off or malformed{why}") from exc
            if width < 1 or height < 1:
                raise DataError(f"{where}: {name} of {width} x {height} pixels; expected at least 1 x 1")
            return Header(name, width, height)
    raise DataError(f"{where}: {_other_type(data)}; {EXPECTED}")


def _png(data: bytes) -> tuple[int, int]:
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    if (length, kind) != (13, b"IHDR"):
        raise ValueError("its first chunk is not IHDR")
    return width, height


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ValueError(f"no marker at byte {at}")
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in _WITHOUT_LENGTH:
            continue
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            raise ValueError("no size before its first scan")
        (length,) = struct.unpack_from(">H", data, at)
        if marker in _START_OF_FRAME:
            height, width = struct.unpack_from(">HH", data, at + 3)
            return width, height
        if length < 2:
            raise ValueError(f"a segment of {length} bytes at byte {at}")
        at += length


def _webp(data: bytes) -> tuple[int, int]:
    (riff_bytes,) = struct.unpack_from("<I", data, 4)
    if riff_bytes + 8 > len(data):
        raise ValueError(f"{len(data)} bytes of {riff_bytes + 8}")
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        raise ValueError("its first chunk is not VP8, VP8L or VP8X")
    return width, height


def _gif(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _bmp(data: bytes) -> tuple[int, int]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == _OS2_HEADER:
        width, height = struct.unpack_from("<HH", data, 18)
    elif header_bytes in _BMP_HEADERS:
        width, height = struct.unpack_from("<ii", data, 18)
    else:
        raise ValueError(f"a header of {header_bytes} bytes")
    return width, abs(height)  # negative: rows from the top


_FORMATS = (
    (b"\x89PNG\r\n\x1a\n", "PNG", _png),
    (b"\xff\xd8\xff", "JPEG", _jpeg),
    (b"RIFF", "WEBP", _webp),
    (b"GIF87a", "GIF", _gif),
    (b"GIF89a", "GIF", _gif),
    (b"BM", "BMP", _bmp),
)


def _other_type(data: bytes) -> str:
    if not data:
        return "an empty file"
    for begins_with, name in _REFUSED:
        if data.startswith(begins_with):
            return name
    if data[4:8] == b"ftyp":
        return {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC"}.get(data[8:12], "an ISO media file")
    text = data[:1000].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if b"<svg" in text:
        return "SVG"
    if text.startswith((b"<!doctype html", b"<html")) or b"<html" in text:
        return "HTML"
    if text.startswith(b"<?xml"):
        return "XML"
    return f"an unknown type (its first bytes are {data[:SHOWN_BYTES].hex(' ')})"


def data_url(data: bytes, where: str) -> str:
    """The file in a URL, with the type that its first bytes have. Raises as `header_of`."""
    kind = header_of(data, where).format.lower()
    return f"{DATA_URL}{kind};base64,{base64.b64encode(data).decode()}"
