"""Files that were made against decoders: each is refused with its reason or has a bounded picture, and the caller goes on."""

import io
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shared.errors import DataError
from shared.images.bounds import ImageBounds
from shared.images.decode import DEFAULT, decode
from shared.images.picture import Picture
from tests.shared.image_files import (
    FORMS,
    chunk,
    decoders,
    deflated,
    form_id,
    painted,
    peak_bytes,
    png,
    saved,
    valid,
)

SMALL = ImageBounds(max_pixels=1_000_000)
Form = tuple[str, str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _decoders_stay_bounded() -> Any:
    """After each test here: no decoder has ever had more address space than its bound, and a valid image is decoded."""
    yield
    assert decode(valid("PNG"), "a").rgb_HW3.shape == (23, 37, 3)
    for process in decoders():
        assert peak_bytes(process, "VmPeak") <= DEFAULT.memory_bytes


def refusal(data: bytes, bounds: ImageBounds = DEFAULT) -> str:
    with pytest.raises(DataError) as refused:
        decode(data, "here", bounds)
    return str(refused.value)


def outcome(data: bytes, bounds: ImageBounds = DEFAULT) -> Picture | str:
    """The picture, or why there is none."""
    try:
        return decode(data, "here", bounds)
    except DataError as exc:
        return str(exc)


def gif(screen: tuple[int, int], frame: tuple[int, int], body: bytes = b"\x02\x02\x4c\x01\x00") -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + body + b";"


def bmp(width: int, height: int, body: bytes, *, bits: int = 24, compression: int = 0) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(body), 1, 1, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, 54) + header + body


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "PNG of 1 GB in its header": (
        lambda: png(32768, 32768, packed=deflated(1024)),
        "here: PNG of 32768 x 32768 pixels; expected 16,000,000 pixels at most",
    ),
    "JPEG": (lambda: valid("JPEG").replace(b"\0\x17\0\x25", b"\xff\xff\xff\xff"), "of 65535 x 65535 pixels"),
    "WebP canvas": (
        lambda: valid("WEBP", "RGBA").replace(struct.pack("<I", 36)[:3] + b"\x16\0\0", b"\xff\xff\xff\xff\xff\xff"),
        "of 16777216 x 16777216 pixels",
    ),
    "GIF screen": (lambda: gif((65535, 65535), (1, 1)), "of 65535 x 65535 pixels"),
    "GIF frame beyond its screen": (lambda: gif((1, 1), (65535, 65535)), "GIF that cannot be decoded"),
    "BMP": (lambda: bmp(2**31 - 1, -(2**31) + 1, b""), "of 2147483647 x 2147483647 pixels"),
    "BMP with run lengths": (lambda: bmp(30000, 30000, b"\xff\0" * 99, bits=8, compression=1), "of 30000 x 30000"),
    "iCCP of 1 GB": (
        lambda: png(3, 2, chunk(b"iCCP", b"a\0\0" + deflated(1024))),
        "PNG that cannot be decoded: Decompressed data too large",
    ),
    "zTXt of 1 GB": (
        lambda: png(3, 2, chunk(b"zTXt", b"a\0\0" + deflated(1024))),
        "PNG that cannot be decoded: Decompressed data too large",
    ),
    "iTXt of 1 GB behind the pixels": (
        lambda: png(3, 2, after=chunk(b"iTXt", b"a\0\1\0\0\0" + deflated(1024))),
        "PNG that cannot be decoded: Decompressed data too large",
    ),
    "many texts": (
        lambda: png(3, 2, *[chunk(b"zTXt", b"a%d\0\0" % n + zlib.compress(bytes(1_000_000), 9)) for n in range(80)]),
        "PNG that cannot be decoded",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_the_decoders_memory(name: str) -> None:
    make, words = BOMBS[name]
    data = make()
    assert len(data) < 1_200_000
    assert words in refusal(data)


def test_pixels_that_open_to_more_than_the_header_says_are_not_opened() -> None:
    data = png(3, 2, packed=deflated(1024))
    assert (decode(data, "a").rgb_HW3 == 0).all()


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_a_file_that_ends_early_is_refused_or_lacks_no_pixel(form: Form) -> None:
    kind, mode, options = form
    data = valid(kind, mode, **options)
    whole = decode(data, "a").rgb_HW3
    places = {*range(0, len(data), max(1, len(data) // 40)), *range(len(data) - 12, len(data))}
    refused = 0
    for end in sorted(places):
        result = outcome(data[:end])
        if isinstance(result, str):
            refused += 1
        else:
            assert end > len(data) - 20, f"{end} of {len(data)} bytes were accepted"
            assert np.array_equal(result.rgb_HW3, whole), f"{end} of {len(data)} bytes"
    assert refused > 35


OTHERS = {
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "SVG ": b'\xef\xbb\xbf<?xml version="1.0"?>\n<!DOCTYPE svg [<!ENTITY a "b">]><SVG onload="x()"/>',
    "HTML": b"<!DOCTYPE html><html><img src=x></html>",
    "PDF": b"%PDF-1.7\n" + valid("JPEG"),
    "TIFF": saved(painted("RGB"), "TIFF"),
    "ICO": saved(painted("RGB"), "ICO"),
    "AVIF": b"\0\0\0\x1cftypavif\0\0\0\0",
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0",
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n",
    "PSD": b"8BPS\0\1",
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0",
    "ZIP": b"PK\3\4" + valid("PNG"),
    "gzip": b"\x1f\x8b\x08",
    "a Git LFS pointer (`git lfs pull` fetches the file)": b"version https://git-lfs.github.com/spec/v1\noid sha256:00",
    "an empty file": b"",
    "an unknown type (its first bytes are 89 50 4e 47 0d 0a 1a 0b)": b"\x89PNG\r\n\x1a\x0b",
    "an unknown type (its first bytes are 50 35 0a 31 20 31 0a 32)": b"P5\n1 1\n255\n\0",
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_type_is_refused_by_its_name(name: str) -> None:
    assert refusal(OTHERS[name]) == f"here: {name.strip()}; expected PNG, JPEG, WebP, GIF or BMP"


def test_of_a_polyglot_only_the_pixels_of_what_it_begins_as_are_taken() -> None:
    script = b"*/=1;alert(1)//"
    for kind in ("GIF", "JPEG", "PNG", "BMP"):
        data = valid(kind)
        assert np.array_equal(decode(data + script, "a").rgb_HW3, decode(data, "a").rgb_HW3), kind
    assert refusal(valid("GIF")[:6] + script).startswith("here: GIF ")


@pytest.mark.parametrize(("width", "height"), [(0, 0), (0, 5), (5, 0)])
def test_an_image_without_pixels_is_refused(width: int, height: int) -> None:
    size = struct.pack(">HH", height, width)
    for kind, data in (
        ("PNG", png(width, height)),
        ("GIF", gif((width, height), (0, 0))),
        ("BMP", bmp(width, height, b"")),
        ("JPEG", valid("JPEG").replace(b"\0\x17\0\x25", size)),
    ):
        assert refusal(data) == f"here: {kind} of {width} x {height} pixels; expected at least 1 x 1"


@pytest.mark.parametrize("size", [(1, 65535), (65535, 1)])
def test_a_line_of_pixels_is_an_image(size: tuple[int, int]) -> None:
    for kind in ("PNG", "BMP", "GIF"):
        assert decode(saved(Image.new("RGB", size, "red"), kind), "a").rgb_HW3.shape == (size[1], size[0], 3)


def test_of_thousands_of_frames_the_first_one_is_decoded() -> None:
    frames = [Image.new("RGB", (8, 8), (n % 256, n // 256, 7)) for n in range(3000)]
    for kind in ("WEBP", "GIF"):
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=1)
        first = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        assert np.array_equal(decode(data, "a", ImageBounds(cpu_s=2)).rgb_HW3, first), kind


def test_a_jpeg_whose_segments_lead_nowhere_is_refused() -> None:
    for tail in (
        b"\xff\xd8\xff",
        b"\xff\xd8\xff" + b"\xff" * 100_000,
        b"\xff\xd8\xff\xe0\0\1",
        b"\xff\xd8\xff\xda\0\2",
    ):
        assert refusal(tail).startswith("here: a JPEG file whose header is cut off or malformed")


def test_the_message_on_a_webp_that_is_cut_off_gives_both_lengths() -> None:
    data = valid("WEBP")
    assert f"({len(data) - 9} bytes of {len(data)})" in refusal(data[:-9])


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(changed))
        match rng.randrange(6):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at : at + rng.randrange(1, 9)] = b""
            case 3:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                other = rng.randrange(len(changed))
                changed[at : at + 16] = changed[other : other + 16]
            case _:
                changed[at : at + 4] = rng.choice(
                    (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0")
                )
        if not changed:
            return b""
    return bytes(changed)


def fuzz(form: Form, seed: int, rounds: int) -> None:
    kind, mode, options = form
    rng, data = random.Random(f"{seed} {form_id(form)}"), valid(kind, mode, **options)
    for at in range(rounds):
        result = outcome(mutated(data, rng), SMALL)
        if isinstance(result, str):
            assert "ended the decoder" not in result, (seed, at)
        else:
            height, width, channels = result.rgb_HW3.shape
            assert channels == 3, (seed, at)
            assert 0 < height * width <= SMALL.max_pixels, (seed, at)


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_a_mutated_file_has_a_picture_or_is_refused(form: Form) -> None:
    fuzz(form, seed=1, rounds=25)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_thousands_of_mutated_files_have_a_picture_or_are_refused(form: Form) -> None:
    fuzz(form, seed=2, rounds=2000)


def test_random_bytes_behind_any_beginning_are_refused_or_have_a_picture() -> None:
    rng = random.Random(3)
    begins = [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\x40\0\0\0WEBPVP8 ", b"GIF89a", b"BM"]
    for at in range(300):
        data = rng.choice(begins) + rng.randbytes(rng.randrange(200))
        result = outcome(data, SMALL)
        assert not isinstance(result, str) or "ended the decoder" not in result, at
