"""Images of a request: the prompt that is sent, and the comparison with what the engine has read."""

import base64

import pytest

from sampler.core.engines.client.prompt_images import PromptImage, image_request, require_read
from sampler.core.errors import EngineContractBroken

IMAGE, VIDEO = 9, 10
PLACEHOLDERS = frozenset({IMAGE, VIDEO})
IDS = [1, 2, IMAGE, IMAGE, IMAGE, 3, IMAGE, IMAGE, 4]


def image(start: int, stop: int, data: bytes) -> PromptImage:
    return PromptImage(start, stop, IMAGE, data, PLACEHOLDERS)


FIRST, SECOND = image(2, 5, b"first"), image(6, 8, b"second")


def test_each_image_is_one_token_of_what_is_sent() -> None:
    assert image_request(IDS, [FIRST, SECOND]) == {
        "input_ids": [1, 2, IMAGE, 3, IMAGE, 4],
        "image_data": [base64.b64encode(b"first").decode(), base64.b64encode(b"second").decode()],
        "return_prompt_token_ids": True,
    }


def test_images_side_by_side_stay_two() -> None:
    side_by_side = [FIRST, image(5, 6, b"second")]
    assert image_request([1, 2, IMAGE, IMAGE, IMAGE, IMAGE], side_by_side)["input_ids"] == [1, 2, IMAGE, IMAGE]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([FIRST], "2 image tokens that belong to none of its 1 images"),
        ([SECOND, FIRST], "2 to 5 do not follow 8"),
        ([FIRST, image(4, 8, b"")], "4 to 8 do not follow 5"),
        ([FIRST, SECOND, image(8, 8, b"")], "8 to 8 do not follow 8"),
        ([FIRST, image(6, 10, b"")], "6 to 10 do not follow 5 in a prompt of 9"),
    ],
)
def test_spans_that_do_not_fit_the_prompt_are_refused(images: list[PromptImage], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_request(IDS, images)


def test_a_token_of_a_video_is_refused() -> None:
    with pytest.raises(ValueError, match="1 image tokens that belong to none of its 2 images"):
        image_request([*IDS, VIDEO], [FIRST, SECOND])


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (IDS[:-1], "a prompt of 8 tokens, and 9 are stored; from token 8 on"),
        ([*IDS, 5], "a prompt of 10 tokens, and 9 are stored; from token 9 on"),
        ([1, 2, 7, *IDS[3:]], "from token 2 on it has .*7.*9.*stored are .*9"),
    ],
)
def test_other_tokens_than_the_stored_ones_are_refused(read: list[int], message: str) -> None:
    with pytest.raises(EngineContractBroken, match=message):
        require_read("http://engine: request r", {"prompt_token_ids": read}, IDS)


def test_an_engine_that_does_not_report_them_is_refused() -> None:
    with pytest.raises(EngineContractBroken, match="prompt_token_ids"):
        require_read("http://engine: request r", {}, IDS)


def test_equal_tokens_pass() -> None:
    require_read("http://engine: request r", {"prompt_token_ids": IDS}, IDS)
