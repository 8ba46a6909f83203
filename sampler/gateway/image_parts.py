"""Images in agents' requests, in the forms of four dialects.

OpenAI's Chat Completions  {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR…"}}
OpenAI's Responses         {"type": "input_image", "image_url": "data:image/png;base64,iVBOR…"}
Anthropic's Messages       {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR…"}}
Google's generateContent   {"inlineData": {"mimeType": "image/png", "data": "iVBOR…"}}

A part becomes a `SentImage`; before the request's conversation is looked for, that becomes a reference to the store
(`with_references`). Nothing is fetched for an agent: http(s) URLs and ids of files are refused. The content decides about the
type, not what the client says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sampler.core.episode.images import ImageFiles
from sampler.core.rendering.template import ChatTemplate
from sampler.gateway.exchange import ChatRequest, GatewayError, Problem, ReceivedMessage
from sampler.gateway.fields import Fields
from shared.errors import ConfigError, DataError

_DATA_URL, _BASE64 = "data:", ";base64"
_REMEDY = "expected a data: URL with base64 (nothing is fetched or stored for a request)"


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image in a request. `path`: of its part."""

    path: str
    base64: str


def image_of_part(part: Fields) -> SentImage | None:
    """None: no image. Raises GatewayError for one that is not in the request."""
    kind = part.peek("type")
    if kind == "image_url":
        return _of_openai(part, part.object("image_url") if not isinstance(part.peek("image_url"), str) else None)
    if kind == "input_image":
        return _of_openai(part, None)
    if kind == "image":
        return _of_anthropic(part)
    return _of_google(part) if part.peek("inlineData") is not None else None


def joined_parts(parts: Sequence[str | SentImage]) -> Any:
    """A text of lines; with images blocks in order, in which texts that follow each other are one."""
    if not any(isinstance(part, SentImage) for part in parts):
        return "\n".join(part for part in parts if isinstance(part, str))
    blocks: list[Any] = []
    for part in parts:
        if isinstance(part, SentImage):
            blocks.append(part)
        elif blocks and isinstance(blocks[-1], dict):
            blocks[-1] = {"type": "text", "text": f"{blocks[-1]['text']}\n{part}"}
        elif part:
            blocks.append({"type": "text", "text": part})
    return blocks


async def with_references(request: ChatRequest, template: ChatTemplate, images: ImageFiles) -> ChatRequest:
    """The request with a reference in place of each image, which is stored. Raises GatewayError, which names the part."""
    if not any(isinstance(message["content"], list) for message in request.messages):
        return request
    return replace(request, messages=[await _with_references(one, template, images) for one in request.messages])


async def _with_references(message: ReceivedMessage, template: ChatTemplate, images: ImageFiles) -> ReceivedMessage:
    if not isinstance(message["content"], list):
        return message
    blocks = [
        await _stored(block, template, images) if isinstance(block, SentImage) else block
        for block in message["content"]
    ]
    return {**message, "content": blocks}


async def _stored(image: SentImage, template: ChatTemplate, images: ImageFiles) -> dict[str, Any]:
    try:
        if template.require_images() is None:
            raise DataError("an image, and the model reads texts alone")
        return await images.reference({"type": "image", "base64": image.base64}, image.path)
    except (DataError, ConfigError) as exc:
        message = str(exc)
        raise GatewayError(
            Problem.INVALID, message if message.startswith(image.path) else f"{image.path}: {message}"
        ) from exc


def _of_openai(part: Fields, inner: Fields | None) -> SentImage:
    """`inner`: the object that has the URL; None: the part itself has it."""
    part.echo("type")
    place, name = (part, "image_url") if inner is None else (inner, "url")
    place.ignore("detail", "auto")
    if place.value("file_id"):
        place.fail("file_id", f"names a file; {_REMEDY}")
    url = place.needed_text(name)
    head, comma, data = url.partition(",")
    if not comma or head[: len(_DATA_URL)].lower() != _DATA_URL or not head.lower().endswith(_BASE64):
        place.fail(name, f"is {url[:60]!r}; {_REMEDY}")
    return SentImage(part.path, data)


def _of_anthropic(part: Fields) -> SentImage:
    part.echo("type")
    source = part.object("source")
    if source is None:
        part.fail("source", "is missing; expected an object with base64")
    kind = source.text("type", "base64")
    if kind != "base64":
        source.fail("type", f"is {kind!r}; expected base64 (nothing is fetched or stored for a request)")
    source.echo("media_type")
    return SentImage(part.path, source.needed_text("data"))


def _of_google(part: Fields) -> SentImage:
    inner = part.object("inlineData")
    assert inner is not None, "the caller has seen it"
    inner.echo("displayName")
    kind = inner.text("mimeType")
    if not kind.startswith("image/"):
        inner.fail("mimeType", f"is {kind!r}; only images are supported")
    # Google's clients write base64 for URLs.
    return SentImage(part.path, inner.needed_text("data").translate(str.maketrans("-_", "+/")))
