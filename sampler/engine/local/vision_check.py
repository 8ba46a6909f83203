"""Whether a forward computes a prompt with an image as transformers does: the features' places, positions, and deepstack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sampler.engine.local.attention import Forward, Piece, Plan, prefill_plan
from sampler.engine.local.kv import KvSlots
from sampler.engine.local.prompt_images import KnownImage, PromptImages
from sampler.engine.local.vision import Levels, Vision, arguments_of, features_of
from shared.images.torch_resizing import by_torch

if TYPE_CHECKING:
    from shared.images.families import Family

HEIGHT, WIDTH = 24, 40  # pixels of the image
WORDS = 6  # tokens on each side of it


def image_difference(model: Any, forward: Forward, kv: KvSlots, family: Family) -> float:
    """Largest logit error relative to the largest logit, in slot 0: two prefill chunks that part the image, then decode.

    0 where the context is too short for the image, which no request can have then.
    """
    rgb_HW3 = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    inputs = {name: torch.from_numpy(array) for name, array in family.inputs(rgb_HW3, by_torch).items()}
    grid = family.grid(HEIGHT, WIDTH)
    if grid is None:
        inputs = {name: tensor[:1] for name, tensor in inputs.items()}  # one tile
    levels = features_of(model, inputs)
    count, placeholder = len(levels[0]), family.placeholder_id
    words = [id_ for id_ in range(3, 3 + 3 * WORDS) if id_ not in (placeholder, family.video_id)]
    image = KnownImage("", -1, [placeholder] * count, grid)
    ids, shown = PromptImages.of([*words[:WORDS], placeholder, *words[WORDS : 2 * WORDS]], placeholder, [image], [b""])
    if len(ids) > kv.max_len:
        return 0.0
    tokens = torch.tensor(ids)
    kinds = {} if grid is None else {"mm_token_type_ids": (tokens == placeholder).int()[None]}
    expected = model(input_ids=tokens[None], use_cache=False, **arguments_of(inputs), **kinds).logits[0]
    found = torch.cat(list(_pieces(forward, kv, tokens, shown, levels)))
    return float((found - expected).abs().max() / expected.abs().max())


def _pieces(forward: Forward, kv: KvSlots, tokens: Tensor, shown: PromptImages, levels: Levels) -> Iterator[Tensor]:
    inside, behind = WORDS + len(levels[0]) // 2, len(tokens) - WORDS // 2
    for start, end in ((0, inside), (inside, behind)):
        piece = Piece(0, end - start, slot=0, past=start)
        plan = prefill_plan(kv, [piece], tokens[start:end], list(range(end - start)))
        Vision.show(plan, [(piece, shown, {0: levels})])
        yield forward.logits(plan)
    for position in range(behind, len(tokens)):
        where = torch.tensor([position])
        index = kv.write_index(torch.zeros(1, dtype=torch.int64), where)
        plan = Plan(kv, tokens[position : position + 1], where, index, [], longest=position + 1)
        plan.rotary = where + shown.shift
        yield forward.logits(plan)
