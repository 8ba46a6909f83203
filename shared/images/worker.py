"""Decodes images by Pillow in a process of its own: `python -m shared.images.worker`.

A decoder may crash, run for hours or fill the memory on a file that was made for it. So this program reads requests from its
standard input and writes replies to its standard output, in binary, without an intermediate encoding:

    REQUEST, the file's bytes   ─▶   REPLY of kind DECODED (height, width), height x width x 3 bytes
                                     REPLY of kind REFUSED (length, 0), a sentence in UTF-8

The kernel bounds its address space (MemoryError), its processor time (SIGXCPU ends it), and lets it write no file and no core.
"""

import io
import os
import resource
import struct
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

REQUEST = struct.Struct(
    "<8sQQdQ"
)  # format, bytes of the file, most pixels, processor time in s, address space in bytes
REPLY = struct.Struct("<BQQ")  # kind, two numbers
DECODED, REFUSED = 0, 1
MAX_REFUSAL_BYTES = 300
OPEN_FILES = 64
ORIENTATION = 0x0112  # tag of EXIF
_FLIPS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")


def main() -> None:
    requests, replies = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only replies go to the pipe
    _import_decoders()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        resource.setrlimit(limit, (value, value))
    while head := requests.read(REQUEST.size):
        kind, num_bytes, max_pixels, cpu_s, memory_bytes = REQUEST.unpack(head)
        _limit(cpu_s, memory_bytes)
        try:
            width, height, pixels = decoded(requests.read(num_bytes), kind.rstrip(b"\0").decode(), max_pixels)
        except MemoryError:
            _refuse(replies, f"needs more than {memory_bytes / 1e6:.0f} MB to decode")
        except Exception as exc:  # noqa: BLE001 - decoders raise anything on a malformed file, and each is that file's own fault
            _refuse(replies, f"cannot be decoded: {exc or type(exc).__name__}")
        else:
            replies.write(REPLY.pack(DECODED, height, width))
            replies.write(pixels)
        replies.flush()


def decoded(data: bytes, kind: str, max_pixels: int) -> tuple[int, int, bytes]:
    """Width, height and RGB bytes of the first frame. `kind`: the only format that is tried."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = max_pixels
    with Image.open(io.BytesIO(data), formats=[kind]) as image:
        if image.width * image.height > max_pixels:
            raise ValueError(f"{image.width} x {image.height} pixels; expected {max_pixels} at most")
        image.load()  # raises on a truncated file
        rgb = _upright(_as_rgb(image), _orientation(image))
    return rgb.width, rgb.height, rgb.tobytes()


def _orientation(image: "Image") -> int:
    """1 to 8, as EXIF defines it; 1 where there is none, or none that can be read."""
    try:
        value: Any = image.getexif().get(ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a viewer shows a picture whose EXIF is malformed as it is stored
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(image: "Image", orientation: int) -> "Image":
    from PIL.Image import Transpose

    return image if orientation == 1 else image.transpose(Transpose[_FLIPS[orientation - 2]])


def _as_rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode.startswith("I;16"):  # the high byte of each sample; `convert` would clip at 255
        high = 0 if image.mode.endswith("B") else 1
        image = Image.frombytes("L", image.size, image.tobytes()[high::2])
    elif image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _import_decoders() -> None:
    """Before the limits apply, and so that no file is read later."""
    from PIL import (
        BmpImagePlugin,
        GifImagePlugin,
        Image,
        JpegImagePlugin,
        MpoImagePlugin,
        PngImagePlugin,
        WebPImagePlugin,
    )

    assert all((BmpImagePlugin, GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, WebPImagePlugin))
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def _limit(cpu_s: float, memory_bytes: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + cpu_s) + 1, resource.RLIM_INFINITY))


def _refuse(replies: io.BufferedWriter, why: str) -> None:
    text = why.encode("utf-8", "backslashreplace")[:MAX_REFUSAL_BYTES]
    replies.write(REPLY.pack(REFUSED, len(text), 0))
    replies.write(text)


if __name__ == "__main__":
    main()
