"""Valid images have the pixels of Pillow's own decoding, and what decodes them may die."""

import dataclasses
import hashlib
import io
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image, ImageOps

from shared.errors import ConfigError, DataError
from shared.images.bounds import ImageBounds
from shared.images.decode import DEFAULT, decode, decode_all
from shared.images.header import header_of
from shared.images.process import DecoderProcess
from tests.shared.image_files import FORMS, decoders, form_id, jpeg_of_many_scans, painted, peak_bytes, saved, valid


class Cramped(ImageBounds):
    """Bounds whose decoder has less memory than their pixels need."""

    @property
    def memory_bytes(self) -> int:
        return 100_000_000


def by_pillow(data: bytes) -> np.ndarray[Any, Any]:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert image is not None
    if image.mode == "I;16":
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, -1)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(rgba, mask=rgba.split()[3])
        return np.asarray(white)
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_the_pixels_are_those_of_pillow(form: tuple[str, str, dict[str, Any]]) -> None:
    kind, mode, options = form
    data = valid(kind, mode, **options)
    picture = decode(data, "a")
    assert picture.sha256 == hashlib.sha256(data).hexdigest()
    assert (picture.rgb_HW3.dtype, picture.rgb_HW3.shape) == (np.uint8, (23, 37, 3))
    assert np.array_equal(picture.rgb_HW3, by_pillow(data))
    assert (header_of(data, "a").format, header_of(data, "a").width, header_of(data, "a").height) == (kind, 37, 23)


def test_what_is_transparent_is_white_and_sixteen_bits_keep_their_high_byte() -> None:
    clear = decode(saved(Image.new("RGBA", (2, 2), (9, 9, 9, 0)), "PNG"), "a")
    assert (clear.rgb_HW3 == 255).all()
    deep = decode(saved(Image.fromarray(np.full((2, 2), 0x80FF, np.uint16)), "PNG"), "a")
    assert (deep.rgb_HW3 == 0x80).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_exif_is_applied(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = valid(kind, exif=exif.tobytes())
    picture = decode(data, "a")
    assert picture.rgb_HW3.shape == ((37, 23, 3) if orientation > 4 else (23, 37, 3))
    assert np.array_equal(picture.rgb_HW3, by_pillow(data))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")  # Pillow, in this process
def test_an_exif_that_cannot_be_read_leaves_the_picture_as_it_is_stored() -> None:
    data = valid("JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff garbage")
    assert np.array_equal(decode(data, "a").rgb_HW3, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (5, 4), color) for color in ("red", "blue", "lime")]
    for kind in ("GIF", "WEBP", "PNG"):
        data = saved(
            frames[0],
            kind,
            save_all=True,
            append_images=frames[1:],
            duration=10,
            **({"lossless": True} if kind == "WEBP" else {}),
        )
        assert (decode(data, kind).rgb_HW3 == (255, 0, 0)).all(), kind


def test_bytes_and_pixels_and_count_are_bounded_and_the_message_says_so() -> None:
    data = valid("PNG")
    for bounds, words in (
        (ImageBounds(max_bytes=len(data) - 1), f"t.jsonl:3: {len(data):,} bytes; expected {len(data) - 1:,} at most"),
        (ImageBounds(max_pixels=37 * 23 - 1), "t.jsonl:3: PNG of 37 x 23 pixels; expected 850 pixels at most"),
    ):
        with pytest.raises(DataError) as refused:
            decode(data, "t.jsonl:3", bounds)
        assert str(refused.value) == words
    exact = ImageBounds(max_bytes=len(data), max_pixels=37 * 23)
    assert decode(data, "a", exact).rgb_HW3.shape == (23, 37, 3)
    with pytest.raises(DataError, match="t: 65 images; expected 64 at most"):
        DEFAULT.check_count(65, "t")


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG", "BMP"])
def test_the_largest_picture_that_is_allowed_fits_the_decoders_memory(kind: str) -> None:
    mode = "RGB" if kind == "JPEG" else "RGBA"
    frame = Image.new(mode, (4000, 4000), (9, 8, 7, 6)[: len(mode)])
    options: dict[str, Any] = {"WEBP": {"save_all": True, "append_images": [Image.new("RGBA", frame.size)]}}.get(
        kind, {}
    )
    data = saved(frame, kind, **options)
    bounds = dataclasses.replace(DEFAULT, max_bytes=100_000_000)
    assert decode(data, "a", bounds).rgb_HW3.shape == (4000, 4000, 3)
    assert all(peak_bytes(process, "VmPeak") <= bounds.memory_bytes for process in decoders())


def test_a_decoder_that_needs_more_memory_than_its_bound_refuses_the_image_and_goes_on() -> None:
    data = saved(Image.new("RGBA", (4000, 4000)), "PNG")
    with pytest.raises(DataError, match="a: PNG that needs more than 100 MB to decode"):
        decode(data, "a", Cramped())
    assert decode(valid("PNG"), "a", Cramped()).rgb_HW3.shape == (23, 37, 3)


def test_endless_work_ends_with_its_processor_time() -> None:
    data, bounds = jpeg_of_many_scans(3000), ImageBounds(cpu_s=1)
    began = time.process_time()
    with pytest.raises(DataError, match="a: JPEG not decoded within 1 s of processor time"):
        decode(data, "a", bounds)
    assert time.process_time() - began < 1, "this process works on nothing meanwhile"
    assert decode(valid("JPEG"), "a").rgb_HW3.shape == (23, 37, 3)


def test_a_decoder_that_is_killed_between_images_is_started_again() -> None:
    data = valid("WEBP")
    for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT):
        first = decode(data, "a")
        for process in decoders():
            process.send_signal(number)
        assert np.array_equal(decode(data, "a").rgb_HW3, first.rgb_HW3)


def test_a_file_that_ends_the_decoder_twice_is_refused() -> None:
    """No file is known that does, so the decoders are killed while they work on one."""
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.05):
            for process in decoders():
                if process.cpu_times().user > 0.5:  # beyond its start: it decodes
                    process.send_signal(signal.SIGSEGV)

    data = jpeg_of_many_scans(3000)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(DataError, match=r"a: JPEG that ended the decoder 2 times \(status -11\)"):
            decode(data, "a", ImageBounds(cpu_s=60))
    finally:
        done.set()
        killer.join()
    assert decode(valid("JPEG"), "a").rgb_HW3.shape == (23, 37, 3)


def test_a_decoder_that_stalls_is_ended_and_its_late_reply_is_no_other_images() -> None:
    process, data = DecoderProcess(), valid("PNG")
    try:
        assert process.decode(data, "PNG", DEFAULT, 60).shape == (23, 37, 3)
        child = max(decoders(), key=lambda one: one.pid)
        child.suspend()
        with pytest.raises(TimeoutError):
            process.decode(data, "PNG", DEFAULT, 0.2)
        assert not child.is_running()
        small = saved(painted("RGB", 5, 4), "PNG")
        assert process.decode(small, "PNG", DEFAULT, 60).shape == (4, 5, 3)
    finally:
        process.close()


def test_many_threads_share_few_decoders_and_each_gets_its_own_picture() -> None:
    files = [saved(painted("RGB", width, 20), "PNG") for width in range(10, 60)]
    with ThreadPoolExecutor(16) as threads:
        for data, picture in zip(files, threads.map(lambda data: decode(data, "a"), files), strict=True):
            assert picture.sha256 == hashlib.sha256(data).hexdigest()
            assert np.array_equal(picture.rgb_HW3, by_pillow(data))
    named = [(data, f"image {at}") for at, data in enumerate(files)]
    assert [p.rgb_HW3.shape[1] for p in decode_all(named)] == list(range(10, 60))
    named[7] = (b"no image", "image 7")
    with pytest.raises(DataError, match="image 7: an unknown type"):
        decode_all(named)
    assert 1 <= len(list(decoders())) <= 4


def test_the_decoders_limits_are_those_of_the_kernel() -> None:
    decode(valid("PNG"), "a")
    (process, *_) = decoders()
    limits = {name: process.rlimit(name) for name in (psutil.RLIMIT_CORE, psutil.RLIMIT_FSIZE, psutil.RLIMIT_NOFILE)}
    assert limits == {psutil.RLIMIT_CORE: (0, 0), psutil.RLIMIT_FSIZE: (0, 0), psutil.RLIMIT_NOFILE: (64, 64)}
    assert process.rlimit(psutil.RLIMIT_AS)[0] == DEFAULT.memory_bytes


CALLER = """
import sys
from shared.images.decode import decode
decode(sys.stdin.buffer.read(), "a")
from tests.shared.image_files import decoders
print(*(process.pid for process in decoders()), flush=True)
import time
time.sleep({sleep})  # until the test kills this process, or not at all
"""


@pytest.mark.parametrize("killed", [True, False])
def test_the_decoders_end_with_their_caller(killed: bool) -> None:
    code = CALLER.format(sleep=1000 if killed else 0)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as caller:
        assert caller.stdin is not None
        assert caller.stdout is not None
        caller.stdin.write(valid("PNG"))
        caller.stdin.close()
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        if killed:
            caller.kill()
        assert caller.wait(60) == (-signal.SIGKILL if killed else 0)
    end = time.monotonic() + 60
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)  # the end of a process of another parent gives no signal
    assert pids


FORKING = """
import os, signal, sys, threading, time
from shared.errors import DataError
from shared.images.bounds import ImageBounds
from shared.images.decode import MOST_PROCESSES, decode
from tests.shared.image_files import decoders, jpeg_of_many_scans, valid

def hold():
    try:
        decode(jpeg_of_many_scans(3000), "a", ImageBounds(cpu_s=5))
    except DataError:
        pass

for _ in range(MOST_PROCESSES):
    threading.Thread(target=hold, daemon=True).start()
while len(list(decoders())) < min(MOST_PROCESSES, len(os.sched_getaffinity(0))):
    time.sleep(0.01)  # the start of a decoder gives this thread no signal
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    decode(valid("PNG"), "a")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_fork_starts_decoders_of_its_own() -> None:
    """While every decoder of its parent works, so that none of them ever becomes free in the fork."""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_without_pillow_the_message_names_the_extra() -> None:
    """In a process that cannot find it, as in an installation without the extra."""
    code = "import sys; sys.modules['PIL'] = None; sys.path.insert(0, '.')\n"
    code += "import importlib.util, importlib.machinery as m\n"
    code += "find = m.PathFinder.find_spec\n"
    code += "m.PathFinder.find_spec = staticmethod(lambda name, *a: None if name == 'PIL' else find(name, *a))\n"
    code += "del sys.modules['PIL']\n"
    code += "from shared.images.decode import decode\n"
    code += "decode(sys.stdin.buffer.read(), 'a')\n"
    ended = subprocess.run([sys.executable, "-c", code], input=valid("PNG"), capture_output=True, check=False)
    assert b"images need Pillow, which is not installed: pip install 'tandem-rl[images]'" in ended.stderr
    assert ConfigError.__name__.encode() in ended.stderr
