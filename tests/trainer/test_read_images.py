"""Images of records are read once for a step; a spoilt one drops its group by name, and a model of text is named."""

import gc
import hashlib
import re
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.documents.images import ImageFile
from shared.documents.states import DataStatus
from shared.errors import ConfigError
from shared.tokens.flatten import digest, flatten
from tests.shared.vision_models import EXAMPLE_MODEL
from tests.trainer.image_episodes import (
    FIRST,
    VisionPlayer,
    begin,
    oldest_of,
    picture,
    played,
    player,
)
from tests.trainer.streams import add_groups, publish
from trainer.data import images as images_module
from trainer.data.images import MASK, RecordImages, TowerImage
from trainer.data.stream import RecordStream
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge

__all__ = ["played", "player"]
pytestmark = pytest.mark.slow

Spoil = Callable[[StoreBridge, VisionPlayer], None]


def image_of(player: VisionPlayer) -> str:
    """The picture of the oldest group's question."""
    return player.part("user", 0, "").image.sha256


def gone(bridge: StoreBridge, player: VisionPlayer) -> None:
    assert bridge(bridge.store.database["images"].delete_one({"_id": image_of(player)})).deleted_count == 1


def changed(bridge: StoreBridge, player: VisionPlayer) -> None:
    values = {"$set": {"data": b"other bytes"}}
    assert bridge(bridge.store.database["images"].update_one({"_id": image_of(player)}, values)).modified_count == 1


def with_another(**fields: Any) -> Spoil:
    """The oldest record's question has been settled with another picture, or another place of it."""

    def spoil(bridge: StoreBridge, player: VisionPlayer) -> None:
        database = bridge.store.database
        where = {f"images.0.{name}": value for name, value in fields.items()}
        of_dispatch = {"_id": f"{FIRST}:0"}
        assert (
            bridge(database["dispatched_sampling_tasks"].update_one(of_dispatch, {"$set": where})).modified_count == 1
        )
        (dispatches,) = bridge(bridge.store.records.tokens_of([FIRST])).values()
        found = digest(flatten(FIRST, dispatches, {d.id: 0.0 for d in dispatches}))
        bridge(database["record_data"].update_one({"_id": FIRST}, {"$set": {"digest": found}}))

    return spoil


def no_image(bridge: StoreBridge, player: VisionPlayer) -> None:
    data = b"a text"
    sha256 = hashlib.sha256(data).hexdigest()
    bridge(bridge.store.images.keep([ImageFile(sha256, data, "PNG", 8, 8)]))
    with_another(sha256=sha256)(bridge, player)


OTHER_SIZE = picture(7, (120, 120))


def other_size(bridge: StoreBridge, player: VisionPlayer) -> None:
    bridge(bridge.store.images.keep([OTHER_SIZE]))
    with_another(sha256=OTHER_SIZE.sha256)(bridge, player)


SPOILT: dict[str, tuple[Spoil, str]] = {
    "a missing image": (gone, "not in the store"),
    "other bytes": (changed, "its 11 bytes in the store have the digest"),
    "no image": (no_image, "expected"),
    "a picture of another size": (other_size, "placeholders; expected .* for 120 x 120 pixels"),
    "an image that is not at its placeholders": (with_another(first=0, count=1), "its tokens have id .*; expected"),
    "fewer placeholders": (with_another(count=4), "token .* is a placeholder without an image"),
}


@pytest.mark.parametrize(("what", "prefetch"), [*((what, False) for what in SPOILT), ("a missing image", True)])
def test_a_group_with_a_spoilt_image_is_dropped_by_name_and_the_step_takes_the_next(
    bridge: StoreBridge, played: VisionPlayer, alone: Parallel, what: str, prefetch: bool
) -> None:
    spoil, message = SPOILT[what]
    publish(bridge, range(1))
    spoil(bridge, played)
    with begin(bridge, alone, played.folder, prefetch=prefetch) as stream:
        assert oldest_of(stream, 1) == {"t1", "t2"}
    data = bridge(bridge.store.data.find({"task": "main:train:0:t0"}))
    assert {one.status for one in data} == {DataStatus.DROPPED}
    for one in data:
        assert one.reason is not None
        assert re.search(rf"record main:train:0:t0:\d:1: .*{message}", one.reason), one.reason


def test_images_and_a_model_of_text_end_the_trainer_with_a_sentence(
    bridge: StoreBridge, played: VisionPlayer, alone: Parallel
) -> None:
    publish(bridge, range(1))
    for prefetch in (False, True):
        with (
            begin(bridge, alone, EXAMPLE_MODEL, prefetch=prefetch) as stream,
            pytest.raises(ConfigError, match=r"record main:train:0:t0:\d:1 has 3 images, but .* is a model of text"),
        ):
            stream.next_batch(1)
    assert {data.status for data in bridge(bridge.store.data.find({}))} == {DataStatus.READY}


@pytest.mark.parametrize("prefetch", [False, True])
def test_every_image_is_read_once_for_a_step_and_freed_after_it(
    bridge: StoreBridge, played: VisionPlayer, alone: Parallel, monkeypatch: pytest.MonkeyPatch, prefetch: bool
) -> None:
    publish(bridge, range(2))
    digests: list[str] = []
    arrays: list[weakref.ref[Any]] = []
    read, of = type(bridge.store.images).read, RecordImages.of

    async def counted(self: Any, sha256: str) -> bytes:
        digests.append(sha256)
        return await read(self, sha256)

    def watched(self: RecordImages, *args: Any) -> dict[str, TowerImage]:
        images = of(self, *args)
        arrays.extend(weakref.ref(array) for image in images.values() for array in image.inputs().values())
        return images

    monkeypatch.setattr(type(bridge.store.images), "read", counted)
    monkeypatch.setattr(RecordImages, "of", watched)
    monkeypatch.setattr("trainer.data.prefetch.READ_AT_ONCE", 1)  # groups come one by one
    with begin(bridge, alone, played.folder, max_tokens_per_row=40, prefetch=prefetch) as stream:
        for step in (1, 2):
            batch = stream.next_batch(step)
            assert batch is not None
            (minibatch,) = batch.minibatches
            rows = [row.images for row in minibatch.rows if row.images is not None]
            pixels = {
                (digest, inputs["pixel_values"].data_ptr())
                for row in rows
                for digest, inputs in zip(row.digests, row.inputs, strict=True)
            }
            assert sum(len(row.digests) for row in rows) > 7, "an image stands in several rows"
            assert {inputs[MASK].dtype for row in rows for inputs in row.inputs} == {torch.bool}
            assert len(pixels) == 7, "of two questions, four tools, and one of all: each is there once"
            stream.commit(step)
            del batch, minibatch, rows
    assert len(set(digests)) == 2 * 7 - 1
    assert max(Counter(digests).values()) <= 2, "the picture of all may be read for each step"
    gc.collect()
    assert arrays
    assert not [array for array in arrays if array() is not None]


def test_beyond_a_bound_images_are_held_as_files_and_give_the_same_pixels(
    bridge: StoreBridge, played: VisionPlayer, alone: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bridge, range(1))

    def pixels_of(stream: RecordStream) -> dict[str, torch.Tensor]:
        batch = stream.next_batch(1)
        assert batch is not None
        rows = [row.images for row in batch.minibatches[0].rows if row.images is not None]
        held = sum(image.array_bytes for image in stream._reader._images._held.values())
        assert held <= images_module.ARRAY_BYTES
        return {digest: row.inputs[place]["pixel_values"] for row in rows for place, digest in enumerate(row.digests)}

    expected = pixels_of(begin(bridge, alone, played.folder))
    one = max(pixels.nbytes for pixels in expected.values())
    monkeypatch.setattr(images_module, "ARRAY_BYTES", 2 * one)
    found = pixels_of(begin(bridge, alone, played.folder))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[digest], pixels) for digest, pixels in expected.items())


def test_a_step_on_text_alone_asks_for_no_image(
    bridge: StoreBridge, alone: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it read the model's directory, which is none here."""
    publish(bridge, range(1))
    add_groups(bridge, range(2))
    monkeypatch.delattr(RecordImages, "of")
    assert oldest_of(begin(bridge, alone, Path("nowhere")), 1) == {"t0", "t1"}
    dispatch = bridge(bridge.store.database["dispatched_sampling_tasks"].find_one({}))
    assert dispatch is not None
    assert "images" not in dispatch
