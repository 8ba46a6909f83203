"""Images in tools' answers: blocks for a model that sees, lines of text for one that reads."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from sampler.core.episode.images import ImageFiles
from sampler.core.tools import ToolLimits, ToolSession
from sampler.core.tools.image_results import MOST_SHOWN
from shared.images.decode import decode
from shared.store import Store
from tests.sampler.boxes import stdio

LIMITS = ToolLimits(max_result_chars=600)


@pytest.fixture
async def seeing(store: Store) -> AsyncIterator[ToolSession]:
    async with ToolSession([stdio("p", "painter.py")], limits=LIMITS, keep=ImageFiles(store).kept) as session:
        yield session


def kinds(blocks: list[Mapping[str, Any]]) -> list[str]:
    return [str(block["type"]) for block in blocks]


async def test_a_picture_stands_between_the_texts_as_in_the_answer(store: Store, seeing: ToolSession) -> None:
    result = await seeing.call("paint", {"height": 30, "width": 20, "shade": 200})
    assert kinds(result.blocks) == ["text", "image", "text"]
    assert (result.blocks[0]["text"], result.blocks[2]["text"]) == ("The picture:", "30 x 20")
    assert result.text == "The picture:\n30 x 20"
    assert result.raw is None, "the answer is in the blocks"
    picture = decode(await store.images.read(result.blocks[1]["sha256"]), "image").rgb_HW3
    assert picture.shape == (30, 20, 3)
    assert picture[0, 0].tolist() == [200, 0, 0]


async def test_a_model_of_text_reads_a_line_about_the_picture(store: Store) -> None:
    async with ToolSession([stdio("p", "painter.py")], limits=LIMITS) as session:
        result = await session.call("paint", {"height": 30, "width": 20, "shade": 200})
    assert result.blocks == []
    assert result.text.startswith("The picture:\n[image: image/png, ")
    assert await store.database["images"].count_documents({}) == 0


async def test_more_pictures_than_are_shown_are_lines(seeing: ToolSession) -> None:
    result = await seeing.call("album", {"count": MOST_SHOWN + 3})
    assert kinds(result.blocks) == ["image"] * MOST_SHOWN + ["text"]
    assert result.blocks[-1]["text"].count("[image: image/png, ") == 3


async def test_what_is_called_an_image_and_is_none_is_a_line_that_says_why(seeing: ToolSession) -> None:
    result = await seeing.call("spoilt", {})
    assert kinds(result.blocks) == ["text", "image", "text"]
    first, second = result.blocks[0]["text"].splitlines()
    assert first.startswith("[image: image/png, cannot be shown: block 1 of the answer: ")
    assert second.startswith("[image: image/png, cannot be shown: ")
    assert (result.blocks[1]["width"], result.blocks[1]["height"]) == (56, 28)


async def test_a_text_that_is_bounded_stands_before_the_pictures(seeing: ToolSession) -> None:
    result = await seeing.call("wordy", {"count": 1000})
    assert kinds(result.blocks) == ["text", "image"]
    assert result.blocks[0]["text"] == result.text
    assert len(result.text) <= 600
    assert result.cut_chars > 4000


async def test_a_summary_takes_the_place_of_the_pictures(seeing: ToolSession) -> None:
    result = await seeing.call("paint", {"height": 30, "width": 20, "shade": 1})
    assert seeing.with_summary(result, "a red band").blocks == []
