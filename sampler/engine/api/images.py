"""Images of a /generate body: base64 files, as many as the prompt has image tokens.

The prompt has one token for each image, as SGLang and vLLM expect it; the engine replaces it by as many as the image has
features. What the model has read is the answer's `prompt_token_ids`, if the request asks for them (`return_prompt_token_ids`).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from sampler.engine.api.errors import bad_value
from sampler.engine.api.generation import Limits

MOST_IMAGES = 256  # of one prompt
MOST_BYTES = 32 << 20  # of one file
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,40};base64,")


def images_of(body: dict[str, Any], count: int, limits: Limits, *, batched: bool) -> list[tuple[bytes, ...]]:
    """The files of each of `count` prompts. Raises ApiError."""
    given = body.get("image_data")
    if not given:
        return [()] * count
    if limits.images == 0:
        raise bad_value(f"image_data is not supported by {limits.name} with this model, which reads no images.")
    of_prompts = given if batched else [given]
    if not isinstance(of_prompts, list) or len(of_prompts) != count:
        raise bad_value("The length of image_data should be equal to the batch size.")
    return [_of_prompt(one, limits) for one in of_prompts]


def _of_prompt(given: Any, limits: Limits) -> tuple[bytes, ...]:
    files = [] if given is None else given if isinstance(given, list) else [given]
    if len(files) > limits.images:
        raise bad_value(f"image_data has {len(files)} images for one prompt; expected at most {limits.images}.")
    return tuple(_file(one, f"image_data[{at}]") for at, one in enumerate(files))


def _file(text: Any, where: str) -> bytes:
    if not isinstance(text, str):
        raise bad_value(
            f"{where} is {type(text).__name__}; expected the image file as base64 text, or a data: URL of it."
        )
    found = _DATA_URL.match(text)
    encoded = text[found.end() :] if found else text
    if len(encoded) > MOST_BYTES // 3 * 4 + 4:
        raise bad_value(f"{where} has {len(encoded)} characters; expected a file of at most {MOST_BYTES} bytes.")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise bad_value(f"{where} begins with {text[:40]!r} and is not base64: {error}.") from error
