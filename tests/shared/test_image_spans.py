"""Images of records: their places are checked, and trees compare (token, digest)."""

import dataclasses

import numpy as np
import pytest

from shared.tokens.image_span import ImageSpan
from shared.tokens.merging import LossRules, merge_counts
from shared.tokens.record_tree import RecordTree, TreeDispatch

IMAGE, MARK = 9, 8


def record(name: str, *images: ImageSpan, ids: tuple[int, ...] = (1, IMAGE, IMAGE, MARK, IMAGE, 2, 3)) -> RecordTree:
    n = len(ids)
    dispatches_N = np.where(np.arange(n) == n - 1, 0, -1).astype(np.int32)
    return RecordTree(
        record_id=name,
        token_ids_N=np.array(ids, dtype=np.int32),
        parents_N=np.arange(-1, n - 1, dtype=np.int32),
        dispatches_N=dispatches_N,
        logprobs_N=np.zeros(n, dtype=np.float32),
        versions_N=dispatches_N,
        dispatches=(TreeDispatch(name, 0, 1.0),),
        images=images,
    )


def test_a_prefix_is_shared_as_far_as_its_images_are_the_same() -> None:
    same, other, longer = (record(name, ImageSpan(name, 1, 3)) for name in ("same", "other", "longer"))
    rules = LossRules()
    assert merge_counts([same, dataclasses.replace(same, record_id="again")], rules).num_tree == 7
    assert merge_counts([same, other], rules).num_tree == 1 + 2 * 6
    assert merge_counts([same, other, longer], rules).num_tree == 1 + 3 * 6
    assert merge_counts([same, record("text")], rules).num_tree == 1 + 2 * 6  # ids that no image accounts for
    grids = [record("g", ImageSpan("g", 1, 2, grid), ids=(1, IMAGE, IMAGE, 2)) for grid in ((1, 1, 2), (1, 2, 1))]
    assert merge_counts(grids, rules).num_tree == 1 + 2 * 3


@pytest.mark.parametrize(
    ("images", "error"),
    [
        ((ImageSpan("a", 1, 4),), "3 placeholders follow; expected 4"),
        ((ImageSpan("a", 7, 1),), "outside of 7 tokens"),
        ((ImageSpan("a", 1, 0),), "outside of 7 tokens"),
        ((ImageSpan("a", 1, 2), ImageSpan("b", 2, 2)), "image b at token 2: not behind the image before it"),
        ((ImageSpan("a", 1, 3, (1, 2, 2)),), r"a grid of \(1, 2, 2\) for 3 placeholders"),
    ],
)
def test_images_that_contradict_the_tokens_are_refused(images: tuple[ImageSpan, ...], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        record("r", *images)


def test_a_branch_inside_an_image_is_refused() -> None:
    good = record("r", ImageSpan("a", 1, 3))
    for branch_at, allowed in ((4, True), (3, False), (2, False)):
        parents_N = good.parents_N.copy()
        parents_N[6] = branch_at
        if allowed:
            dataclasses.replace(good, parents_N=parents_N)
        else:
            with pytest.raises(ValueError, match="another branch begins inside the image"):
                dataclasses.replace(good, parents_N=parents_N)
