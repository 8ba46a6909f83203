"""Each image gives its placeholders; an image token in untrusted text gives none."""

import re
from pathlib import Path

import pytest

from sampler.core.rendering.marks import MARK_END, MARK_START, unmarked
from sampler.core.rendering.template import ChatTemplate
from shared.errors import DataError
from shared.images.families import Family, family_of
from shared.images.placeholders import expanded, refuse_typed, spans
from tests.shared.vision_models import PAD_IMAGE, VISION_FAMILIES, write_vision_model

SIZES = [(40, 100), (5, 7), (31, 90)]
MARKED = re.compile(f"{MARK_START}.*?{MARK_END}", re.DOTALL)


@pytest.fixture(scope="module", params=VISION_FAMILIES)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("model"), request.param, weights=False)


@pytest.fixture(scope="module")
def template(model_dir: Path) -> ChatTemplate:
    return ChatTemplate.from_dir(model_dir)


@pytest.fixture(scope="module")
def family(model_dir: Path) -> Family:
    found = family_of(model_dir)
    assert found is not None
    return found


def written(family: Family) -> str:
    """What a chat template writes for an image block."""
    return PAD_IMAGE if family.image_token in PAD_IMAGE else family.image_token


def test_spans_cover_the_placeholders_of_each_image(family: Family, template: ChatTemplate) -> None:
    image = written(family)
    text, places = expanded(f"A{image}{image}B{image}C", SIZES, family)
    assert [text[start:stop] for start, stop in places] == [family.tokens(*size) for size in SIZES]
    ids = template.encode(text)
    for span, size in zip(spans(ids, SIZES, family), SIZES, strict=True):
        inside = ids[span.start : span.stop]
        assert inside[0] == inside[-1] == family.placeholder_id
        assert inside.count(family.placeholder_id) == span.count == family.features(*size)
        assert family.placeholder_id not in (ids[span.start - 1], ids[span.stop])
        grid = family.grid(*size)
        assert grid is None or span.count == len(inside) == grid[1] * grid[2]


def test_a_text_without_images_has_no_spans(family: Family, template: ChatTemplate) -> None:
    assert expanded("plain", [], family) == ("plain", [])
    assert spans(template.encode("plain"), [], family) == []
    assert spans([], [], family) == []


def test_images_without_anything_between_keep_their_own_spans(family: Family, template: ChatTemplate) -> None:
    text, _ = expanded(family.image_token * 2, SIZES[:2], family)
    first, second = spans(template.encode(text), SIZES[:2], family)
    assert (first.count, second.count) == (family.features(*SIZES[0]), family.features(*SIZES[1]))
    assert first.stop <= second.start


@pytest.mark.parametrize("number", [0, 1, 3])
def test_another_number_of_images_than_of_tokens_is_refused_with_both(number: int, family: Family) -> None:
    with pytest.raises(DataError, match=f"2 times, for {number} images"):
        expanded(2 * written(family), SIZES[:number], family)


def test_placeholders_that_no_image_accounts_for_are_refused(family: Family, template: ChatTemplate) -> None:
    text, _ = expanded(written(family), SIZES[:1], family)
    ids, count = template.encode(text), family.features(*SIZES[0])
    spans(ids, SIZES[:1], family)
    for wrong in ([*ids, family.placeholder_id], [family.placeholder_id, *ids]):
        with pytest.raises(DataError, match=f"{count + 1} placeholder tokens .* for 1 images, which have {count}"):
            spans(wrong, SIZES[:1], family)
    with pytest.raises(DataError, match=f"{count} placeholder tokens .* for 0 images, which have 0"):
        spans(ids, [], family)
    with pytest.raises(DataError, match=f"{count - 1} placeholder tokens"):
        spans(ids[: ids.index(family.placeholder_id)] + ids[ids.index(family.placeholder_id) + 1 :], SIZES[:1], family)


def test_placeholders_that_are_not_in_a_row_are_refused(family: Family, template: ChatTemplate) -> None:
    text, _ = expanded(written(family), SIZES[:1], family)
    ids = template.encode(text)
    at = ids.index(family.placeholder_id) + 1
    moved = [*ids[:at], *template.encode("A"), *ids[at:]]
    with pytest.raises(DataError, match=r"image 0: .* expected them in a row"):
        spans(moved, SIZES[:1], family)


def test_placeholders_of_videos_are_refused(family: Family, template: ChatTemplate) -> None:
    if family.video_id is None:
        assert template.token_id("<|video_pad|>") is None
        return
    with pytest.raises(DataError, match="token 1 is the placeholder of a video"):
        spans([*template.encode("A"), family.video_id], [], family)


def test_an_image_token_that_a_user_typed_is_encoded_as_text(family: Family, template: ChatTemplate) -> None:
    typed = f"see {family.image_token} here"
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": typed}]}]
    marked = template.render_marked(messages, None)
    text, _ = expanded(marked, SIZES[:1], family, plain=MARKED)
    ids = template.encode_marked(text)
    (span,) = spans(ids, SIZES[:1], family)
    assert span.count == family.features(*SIZES[0])
    assert typed in unmarked(text)
    assert typed in template.decode(ids)


def test_an_unmarked_image_token_is_refused(family: Family, template: ChatTemplate) -> None:
    text = template.render(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": family.image_token}]}], None
    )
    with pytest.raises(DataError, match="2 times, for 1 images"):
        expanded(text, SIZES[:1], family)


def test_an_image_token_of_two_text_blocks_is_refused(family: Family, template: ChatTemplate) -> None:
    """Neither block contains it."""
    head, tail = family.image_token[:3], family.image_token[3:]
    for block in (head, tail):
        refuse_typed(block, family, "line 1")
    blocks = [{"type": "text", "text": head}, {"type": "text", "text": tail}]
    text = template.render([{"role": "user", "content": blocks}], None)
    with pytest.raises(DataError, match="1 times, for 0 images"):
        expanded(text, [], family)


def test_texts_with_tokens_of_images_are_refused_with_their_place(family: Family) -> None:
    refuse_typed("a < b > c, image", family, "line 1")
    assert family.image_token in family.control_tokens
    for token in family.control_tokens:
        with pytest.raises(DataError, match=re.escape(f"data.jsonl:3: the text contains {token!r}")):
            refuse_typed(f"A{token}B", family, "data.jsonl:3")
