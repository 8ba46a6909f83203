"""Images of messages become references: decoded, stored once, and sent to engines so that every decoder shows the same pixels."""

import base64
import hashlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sampler.core.episode.images import ImageFiles
from sampler.core.rendering.images import ImagePlace
from shared.errors import DataError
from shared.images.bounds import ImageBounds
from shared.images.decode import decode
from shared.store import Store
from tests.shared.image_files import FORMS, form_id, painted, png, saved, valid


@pytest.fixture
def files(store: Store) -> ImageFiles:
    return ImageFiles(store)


def message(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def for_engine(files: ImageFiles, sha256: str) -> bytes:
    [image] = await files.prompt_images([ImagePlace(sha256, 1, 4, 1, 3, None)], 7)
    assert (image.start, image.stop, image.token) == (1, 4, 7)
    return image.data


async def test_every_form_of_a_block_becomes_the_same_reference_and_one_stored_file(
    store: Store, files: ImageFiles
) -> None:
    data = valid("PNG")
    text = {"type": "text", "text": "look"}
    encoded = base64.b64encode(data).decode()
    blocks = [
        {"type": "image", "base64": encoded},
        {"type": "image", "url": data_url(data)},
        {"type": "image_url", "image_url": {"url": data_url(data), "detail": "high"}},
        {"type": "image_url", "image_url": data_url(data)},
        {"type": "image", "bytes": data},
    ]
    plain = {"role": "system", "content": "be brief"}
    shown = await files.referenced([plain, message(text, *blocks)])
    assert shown[0] is plain
    sha256 = hashlib.sha256(data).hexdigest()
    block = {"type": "image", "sha256": sha256, "width": 37, "height": 23, "num_bytes": len(data)}
    assert shown[1] == message(text, *[block] * 5)
    assert await store.database["images"].count_documents({}) == 1
    assert await store.images.read(sha256) == data
    assert await files.referenced(shown) == shown


async def test_a_reference_is_that_of_the_store_whatever_its_sizes_were_said_to_be(
    store: Store, files: ImageFiles
) -> None:
    [known] = (await files.referenced([message({"type": "image", "bytes": valid("PNG")})]))[0]["content"]
    forged = {**known, "width": 4000, "height": 1, "more": "x"}
    assert (await ImageFiles(store).referenced([message(forged)]))[0]["content"] == [known]
    with pytest.raises(DataError, match=r"message 2, block 2: image 0000.* is not in the store"):
        await files.referenced([message(), message("x", {"type": "image", "sha256": "0" * 64})])


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ({"type": "image", "path": "/etc/passwd"}, "a path in a message; expected a data: URL, base64 or bytes"),
        ({"type": "image", "image": "README.md"}, "a path in a message"),
        ({"type": "image", "image": {"path": "a.png"}}, "a path in a message"),
        ({"type": "image", "url": "file:///etc/passwd"}, "expected a data: URL"),
        ({"type": "image", "url": "http://127.0.0.1:1/a.png"}, "image_hosts"),
        ({"type": "image", "base64": "%%%"}, "no base64 that can be decoded"),
        ({"type": "image", "bytes": b"<svg onload='alert(1)'/>"}, "expected"),
        ({"type": "image", "bytes": valid("PNG")[:60]}, "PNG"),
        ({"type": "image", "bytes": png(60_000, 60_000)}, "pixels at most"),
        ({"type": "image"}, "expected one of"),
        ({"type": "image", "sha256": 7}, "expected one of"),
    ],
)
async def test_what_is_no_image_is_an_error_that_names_message_and_block(
    store: Store, files: ImageFiles, block: Any, error: str
) -> None:
    with pytest.raises(DataError, match=f"message 1, block 1: .*({error})"):
        await files.referenced([message(block)])
    assert await store.database["images"].count_documents({}) == 0


async def test_the_bounds_are_those_given(store: Store) -> None:
    files = ImageFiles(store, ImageBounds(max_pixels=800))
    with pytest.raises(DataError, match="800 pixels at most"):
        await files.kept(valid("PNG"), "image")


@pytest.mark.parametrize("form", FORMS, ids=form_id)
async def test_engines_are_sent_the_pixels_that_the_trainer_reads(files: ImageFiles, form: Any) -> None:
    kind, mode, options = form
    data = valid(kind, mode, **options)
    block = await files.kept(data, "image")
    sent = await for_engine(files, block["sha256"])
    as_pillow_opens_it = np.asarray(Image.open(io.BytesIO(sent)).convert("RGB"))
    assert np.array_equal(as_pillow_opens_it, decode(data, "image").rgb_HW3)
    assert (sent == data) == ((kind == "PNG" and mode in ("L", "RGB") and not options) or kind == "JPEG")


async def test_an_orientation_is_applied_before_an_engine_sees_the_image(store: Store, files: ImageFiles) -> None:
    for kind in ("JPEG", "PNG"):
        exif = Image.Exif()
        exif[0x0112] = 6  # turned by 90 degrees
        data = saved(painted("RGB"), kind, exif=exif)
        block = await files.kept(data, "image")
        assert (block["width"], block["height"]) == (23, 37)
        for process in (files, ImageFiles(store)):
            sent = Image.open(io.BytesIO(await for_engine(process, block["sha256"])))
            assert sent.size == (23, 37)
            assert not sent.getexif()


async def test_an_image_that_is_gone_is_an_error(files: ImageFiles) -> None:
    with pytest.raises(DataError, match="not in the store"):
        await for_engine(files, "0" * 64)


async def test_memory_is_bounded(store: Store, files: ImageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files._for_engines, "_most", 3000)
    blocks = [await files.kept(saved(painted("RGB", 20 + n, 20), "PNG"), "image") for n in range(9)]
    assert files._for_engines._total <= 3000
    assert len(files._for_engines._values) < len(blocks)
    for block in blocks:
        assert len(await for_engine(files, block["sha256"])) == block["num_bytes"]
