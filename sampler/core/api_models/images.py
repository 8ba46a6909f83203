"""Images in requests to API models: the file, in a data: URL, where the model sees (`supports_vision`); else a line of text.

    stored       {"type": "image", "sha256": "9f3a…", "width": 640, "height": 480, "num_bytes": 31007}
    sent         {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}
    or           [image: 640 x 480, not shown]

Bounded: the newest `MOST_SENT` images of a request, of `MOST_SENT_BYTES` in all; older ones are lines. Of a format that the APIs
do not take (BMP) it is a line, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shared.documents.content import Block, is_reference, references_in

Message = Mapping[str, Any]
ReadImage = Callable[[str], Awaitable[bytes]]  # the file, by its digest; raises DataError

MOST_SENT = 16
MOST_SENT_BYTES = 20 << 20
_NOT_TAKEN = b"BM"  # how a BMP begins


async def with_files(messages: Sequence[Message], read: ReadImage) -> list[Message]:
    """The messages with the newest images as data: URLs. Raises DataError for one that is not in the store."""
    sizes: dict[str, int] = {str(image["sha256"]): int(image["num_bytes"]) for image in references_in(messages)}
    urls: dict[str, str] = {}
    remaining = MOST_SENT_BYTES
    for sha256 in _newest(messages):
        remaining -= sizes[sha256]
        if remaining < 0 or len(urls) == MOST_SENT:
            break
        url = await asyncio.to_thread(_url, await read(sha256))
        if url is not None:
            urls[sha256] = url
    return [_rewritten(message, urls) for message in messages]


def with_lines(messages: Sequence[Message]) -> list[Message]:
    """The messages as texts, with a line in place of each image."""
    return [_rewritten(message, {}) for message in messages]


def line_of(image: Mapping[str, Any]) -> str:
    return f"[image: {image.get('width')} x {image.get('height')}, not shown]"


def _newest(messages: Sequence[Message]) -> list[str]:
    """Digests of the images, each once, those that come last first."""
    return list(dict.fromkeys(str(image["sha256"]) for image in reversed(references_in(messages))))


def _rewritten(message: Message, urls: Mapping[str, str]) -> Message:
    content = message.get("content")
    if not isinstance(content, list | tuple) or not any(map(is_reference, content)):
        return message
    blocks = [_sent(block, urls) for block in content]
    if all(block.get("type") == "text" for block in blocks):
        return {**message, "content": "\n".join(str(block.get("text", "")) for block in blocks)}
    return {**message, "content": blocks}


def _sent(block: Block, urls: Mapping[str, str]) -> Block:
    if not is_reference(block):
        return block
    url = urls.get(str(block["sha256"]))
    return {"type": "text", "text": line_of(block)} if url is None else {"type": "image_url", "image_url": {"url": url}}


def _url(data: bytes) -> str | None:
    """None: of a format that the APIs do not take."""
    from shared.images.header import data_url  # for prompts with images alone

    return None if data.startswith(_NOT_TAKEN) else data_url(data, "an image of a prompt")
