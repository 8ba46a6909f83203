"""Images in a request to an engine, and the check that the model has read the tokens that are stored.

    stored    [q, <start>, <image>, <image>, <image>, <end>, q]     three features; the trainer's prompt
    sent      [q, <start>, <image>, <end>, q] + the image's file    the engine replaces one token by the features that it computes
    answered  prompt_token_ids                                      refused where they differ from what is stored

SGLang and vLLM take one token for each image and expand it by their own processor; an expanded prompt they expand again.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sampler.core.engines.client.fields import listed, shown
from sampler.core.errors import EngineContractBroken


@dataclass(frozen=True, slots=True)
class PromptImage:
    """Tokens `start` to `stop` of the prompt (without `stop`) stand for the image. `token`: the one that an engine expands.
    `data`: its file. `placeholders`: the model's tokens of images and videos, of which a prompt has none but these."""

    start: int
    stop: int
    token: int
    data: bytes
    placeholders: frozenset[int]


def image_request(input_ids: Sequence[int], images: Sequence[PromptImage]) -> dict[str, Any]:
    """The request's fields. Raises ValueError for spans that overlap or lie outside the prompt, and for an image token outside of
    them: SGLang does not answer such a request."""
    sent: list[int] = []
    reached = 0
    for image in images:
        if not reached <= image.start < image.stop <= len(input_ids):
            raise ValueError(
                f"image tokens {image.start} to {image.stop} do not follow {reached} in a prompt of {len(input_ids)}"
            )
        sent += [*input_ids[reached : image.start], image.token]
        reached = image.stop
    sent += input_ids[reached:]
    spare = sum(map(sent.count, frozenset().union(*(image.placeholders for image in images)))) - len(images)
    if spare:
        raise ValueError(f"the prompt has {spare} image tokens that belong to none of its {len(images)} images")
    return {
        "input_ids": sent,
        "image_data": [base64.b64encode(image.data).decode() for image in images],
        "return_prompt_token_ids": True,
    }


def require_read(where: str, answer: Mapping[str, Any], input_ids: Sequence[int]) -> None:
    """Raises EngineContractBroken where the engine has read other tokens than `input_ids`."""
    read = listed(where, "prompt_token_ids", answer.get("prompt_token_ids"))
    if read == list(input_ids):
        return
    at = next(i for i, (ours, theirs) in enumerate(zip_longest(input_ids, read)) if ours != theirs)
    ours, theirs = (shown(list(ids[at : at + 4])) for ids in (input_ids, read))
    raise EngineContractBroken(
        f"{where}: the engine expanded the images to a prompt of {len(read)} tokens, and {len(input_ids)} are stored; from token "
        f"{at} on it has {theirs}, stored are {ours}. Its image processor has other settings than the model's folder here"
    )
