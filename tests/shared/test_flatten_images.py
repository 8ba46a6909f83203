"""From dispatches with images to the token tree: every picture at its own tokens, and in the digest."""

import dataclasses

import pytest

from shared.documents import DispatchedSamplingTask, DispatchTokens
from shared.documents.images import PlacedImage
from shared.errors import DataError
from shared.tokens.flatten import digest, flatten, tree_of
from shared.tokens.image_span import ImageSpan, placeholders
from tests.sampler.builders import make_dispatch
from tests.shared.test_flatten import ADVANTAGES, only_tokens, settled
from trainer.trees.tree import merge

PLACE, MARK = 90, 91  # the placeholder, and the mark before each tile


def request(turn: int, prompt: list[int], images: list[PlacedImage], **fields: object) -> DispatchedSamplingTask:
    return make_dispatch("r", turn, prompt, [3, 4], images=images, **fields)  # type: ignore[arg-type]  # fields of `make_dispatch`, checked there


def one(sha256: str, first: int, count: int = 4) -> PlacedImage:
    return PlacedImage(sha256=sha256, first=first, count=count)


PROMPT = [1, MARK, PLACE, PLACE, MARK, PLACE, PLACE, 2]  # 8 tokens, two tiles
ANSWER = [5, MARK, PLACE, PLACE, 6]


def episode() -> list[DispatchedSamplingTask]:
    """An image in the prompt and one in a tool result; the same tokens with another picture; a second thread."""
    return [
        request(0, PROMPT, [one("aa", 2)]),
        request(1, ANSWER, [one("bb", 2, 2)], parent=0, shared_length=10),
        request(2, ANSWER, [one("cc", 2, 2)], parent=0, shared_length=10),
        request(3, PROMPT, [one("dd", 2)]),
        request(4, [7], [], parent=0, shared_length=8),
    ]


def test_images_stand_in_the_order_of_their_first_tokens_wherever_their_branch_is() -> None:
    tree = flatten("r", episode(), ADVANTAGES)
    assert [(span.sha256, span.count) for span in tree.images] == [("aa", 4), ("bb", 2), ("cc", 2), ("dd", 4)]
    assert [span.first for span in tree.images] == sorted(span.first for span in tree.images)
    for span in tree.images:
        assert set(tree.token_ids_N[placeholders(tree, span)].tolist()) == {PLACE}
        (turn,) = (d.turn for d in episode() if any(image.sha256 == span.sha256 for image in d.images))
        path = [t for leaf in tree.leaves() for t in tree.path(leaf).tolist() if span.first in tree.path(leaf)]
        assert turn in tree.dispatches_N[path], "the image is before the reply of its own request"
    before = [
        span.sha256 for span in tree.images if span.first in tree.path(int((tree.dispatches_N == 4).nonzero()[0][0]))
    ]
    assert before == ["aa"], "a branch shares the image of the prompt that it shares"


def test_records_share_a_prefix_as_far_as_the_pictures_are_the_same() -> None:
    records = [
        dataclasses.replace(flatten("r", [request(0, PROMPT, [one(sha256, 2)])], ADVANTAGES), record_id=name)
        for name, sha256 in (("r0", "aa"), ("r1", "aa"), ("r2", "dd"))
    ]
    assert merge(records).num_tree == 10 + 8  # r2 shares the two tokens before its picture


def test_the_store_reads_what_the_tree_is_made_of() -> None:
    dispatches = episode()
    stored = [DispatchTokens.from_mongo(only_tokens(d)) for d in dispatches]
    tree = tree_of(settled(dispatches), stored)
    assert tree.images == flatten("r", dispatches, ADVANTAGES).images
    assert len(tree.images) == 4


def test_the_digest_is_of_the_images_too_and_that_of_text_stays() -> None:
    text = [make_dispatch("r", 0, [1, 2], [3, 4]), make_dispatch("r", 1, [5], [6], parent=0, shared_length=2)]
    assert digest(flatten("r", text, ADVANTAGES)) == "ab811ab2c7e7247b"  # as before there were images
    grid = PlacedImage(sha256="aa", first=2, count=4, grid=(1, 2, 2))
    other_grid = PlacedImage(sha256="aa", first=2, count=4, grid=(1, 4, 1))
    placed = [[], [one("aa", 2)], [one("ab", 2)], [one("aa", 3, 3)], [one("aa", 2, 3)], [grid], [other_grid]]
    digests = [digest(flatten("r", [request(0, PROMPT, images)], ADVANTAGES)) for images in placed]
    assert len(set(digests)) == len(placed)


def test_a_picture_changed_after_settlement_is_never_trained() -> None:
    dispatch = request(0, PROMPT, [one("aa", 2)])
    data = settled([dispatch])
    with pytest.raises(DataError, match="A dispatch was changed"):
        tree_of(data, [dispatch.model_copy(update={"images": [one("ab", 2)]})])
    with pytest.raises(DataError, match="A dispatch was changed"):
        tree_of(data, [dispatch.model_copy(update={"images": []})])


SAMPLED_IMAGE = make_dispatch("r", 0, [*PROMPT, PLACE], [PLACE, PLACE], images=[one("aa", 2), one("bb", 8, 3)])


@pytest.mark.parametrize(
    ("dispatches", "message"),
    [
        (
            [request(0, PROMPT, [one("aa", 8)])],
            "image aa has 4 placeholders from token 8 of its prompt on; the prompt has 8 tokens",
        ),
        ([request(0, PROMPT, [one("aa", -1)])], "from token -1"),
        ([request(0, PROMPT, [one("aa", 2, 5)])], "5 placeholders from token 2 .* with 4 placeholders from there on"),
        ([request(0, PROMPT, [one("aa", 2, 0)])], "image aa has 0 placeholders"),
        ([SAMPLED_IMAGE], "image bb has 3 placeholders from token 8 .* with 1 placeholders"),
        ([request(0, PROMPT, [one("aa", 2), one("bb", 3, 2)])], "image bb at token 3: not behind the image before it"),
        ([request(0, PROMPT, [one("aa", 5, 2), one("bb", 2, 2)])], "image bb at token 2: not behind"),
        (
            [request(0, PROMPT, [one("aa", 2)]), request(1, [9], [], parent=0, shared_length=4)],
            "branch begins inside the image",
        ),
    ],
)
def test_images_that_are_not_in_the_prompt_whole_are_refused(
    dispatches: list[DispatchedSamplingTask], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        flatten("r", dispatches, ADVANTAGES)


def test_an_image_keeps_its_grid() -> None:
    placed = PlacedImage(sha256="aa", first=2, count=4, grid=(1, 2, 2))
    assert flatten("r", [request(0, PROMPT, [placed])], ADVANTAGES).images == (ImageSpan("aa", 2, 4, (1, 2, 2)),)
