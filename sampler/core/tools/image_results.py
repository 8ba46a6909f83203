"""Images in a tool's answer, for models that see: the blocks that the model reads, in the answer's order.

    answer   text "The page:"   image (base64)   text "3 links"
    blocks   text "The page:"   reference        text "3 links"          `ToolResult.blocks`; `text` has the texts alone

An image that cannot be read is a line of text that says why. Images beyond `MOST_SHOWN` are lines as for models of text. If the
texts are bounded, they stand before the images.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from sampler.core.tools.results import ToolResult, block_text
from shared.documents.content import Block
from shared.errors import DataError

MOST_SHOWN = 16  # of one answer
StoreImage = Callable[[bytes, str], Awaitable[Block]]  # (file, its name in messages) to the reference
Bound = Callable[[CallToolResult], ToolResult]


async def with_images(answer: CallToolResult, store: StoreImage, bound: Bound) -> ToolResult:
    """`bound`: of an answer without images."""
    if not any(_image_of(block) for block in answer.content):
        return bound(answer)
    parts = await _parts(answer.content, store)
    texts = [part for part in parts if isinstance(part, TextContent)]
    result = bound(answer.model_copy(update={"content": texts}))
    if result.text == "\n".join(text.text for text in texts):
        blocks = _merged(parts)
    else:  # bounded, or made of structured content
        blocks = _merged([TextContent(type="text", text=result.text), *(one for one in parts if isinstance(one, dict))])
    has_images = any(block["type"] == "image" for block in blocks)
    return replace(result, blocks=blocks if has_images else [], answer=answer)


async def _parts(content: Sequence[ContentBlock], store: StoreImage) -> list[TextContent | Block]:
    parts: list[TextContent | Block] = []
    shown = 0
    for at, block in enumerate(content):
        image = _image_of(block)
        if image is None or shown == MOST_SHOWN:
            parts.append(TextContent(type="text", text=block_text(block)))
            continue
        kind, data = image
        try:
            parts.append(await store(base64.b64decode(data, validate=True), f"block {at + 1} of the answer"))
            shown += 1
        except (DataError, binascii.Error) as exc:
            parts.append(TextContent(type="text", text=f"[image: {kind}, cannot be shown: {exc}]"))
    return parts


def _image_of(block: ContentBlock) -> tuple[str, str] | None:
    """(media type, base64)"""
    if isinstance(block, ImageContent):
        return block.mime_type, block.data
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, BlobResourceContents):
        kind = block.resource.mime_type or ""
        return (kind, block.resource.blob) if kind.startswith("image/") else None
    return None


def _merged(parts: Sequence[TextContent | Block]) -> list[Block]:
    """As blocks: texts that follow each other are one, by lines."""
    blocks: list[Block] = []
    for part in parts:
        if not isinstance(part, TextContent):
            blocks.append(part)
        elif blocks and blocks[-1]["type"] == "text":
            blocks[-1] = {"type": "text", "text": f"{blocks[-1]['text']}\n{part.text}"}
        elif part.text:
            blocks.append({"type": "text", "text": part.text})
    return blocks
