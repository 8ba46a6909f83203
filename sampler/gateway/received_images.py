"""Images of a request become references: decoded and stored before the request is asked, each file once.

    [{"type": "text", …}, SentImage("messages[0].content[1].image_url.url", "data:image/png;base64,…")]
    ─▶ [{"type": "text", …}, {"type": "image", "sha256": "9f3a…", "width": 640, …}]

A client sends its whole history each time; an image that this process has seen costs a digest. What cannot be shown is a 400
that names its place, and costs the attempt nothing.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import MOST_PROMPT_IMAGES
from sampler.gateway.exchange import (
    ChatRequest,
    GatewayError,
    Problem,
    ReceivedMessage,
    RetryRequest,
    SentImage,
    TooManyImages,
    is_data_url,
)
from shared.documents.content import Block
from shared.errors import ConfigError, DataError


def images_of(request: ChatRequest) -> list[SentImage]:
    """Those that are not references yet, in order."""
    listed = (message["content"] for message in request.messages if isinstance(message["content"], list))
    return [block for content in listed for block in content if isinstance(block, SentImage)]


def sees(resources: Resources, models: Iterable[str]) -> bool:
    """Whether one of these policies reads images."""
    return any(resources.policy_client(model).template.images is not None for model in models)


async def with_references(request: ChatRequest, resources: Resources) -> ChatRequest:
    """Its model is a policy of these resources. Raises GatewayError, and TandemError for what is no fault of the request."""
    images = images_of(request)
    if not images:
        return request
    _require_sight(request, resources, images[0])
    if len(images) > MOST_PROMPT_IMAGES:
        raise TooManyImages(
            f"prompt is too long: {len(images)} images; expected {MOST_PROMPT_IMAGES} at most, and "
            f"{images[MOST_PROMPT_IMAGES].path} is one more"
        )
    return replace(request, messages=[await _referenced(message, resources) for message in request.messages])


def _require_sight(request: ChatRequest, resources: Resources, first: SentImage) -> None:
    template = resources.policy_client(request.model).template
    if template.images is not None:
        return
    why = "reads texts alone"
    try:
        template.require_images()
    except ConfigError as exc:
        why = f"cannot be shown images here ({exc})"
    raise GatewayError(Problem.INVALID, f"{first.path}: an image, and model {request.model!r} {why}; leave it out")


async def _referenced(message: ReceivedMessage, resources: Resources) -> ReceivedMessage:
    content = message["content"]
    if not isinstance(content, list):
        return message
    blocks: list[Any] = [await _reference(one, resources) if isinstance(one, SentImage) else one for one in content]
    return {**message, "content": blocks}


async def _reference(image: SentImage, resources: Resources) -> Block:
    block = {"type": "image", "url" if is_data_url(image.data) else "base64": image.data}
    try:
        return await resources.images.reference(block, image.path)
    except DataError as exc:
        raise GatewayError(Problem.INVALID, str(exc)) from exc
    except (TimeoutError, MemoryError) as exc:  # of the decoder: the machine's fault
        raise RetryRequest(str(exc)) from exc
