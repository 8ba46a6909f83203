"""Contents of messages, queries and tool results: a text, or blocks of text and images in order.

"What is it?"
[{"type": "text", "text": "What is it?"}, {"type": "image", "sha256": "9f…", "width": 640, "height": 480, "num_bytes": 31007}]

Stored documents have only such references; the image itself is in the collection `images`, once (`shared.documents.images`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.documents.images import ImageFile

Block = dict[str, Any]
IMAGE_BLOCKS = ("image", "image_url")  # types of blocks that bring an image, in requests and in data sets


def image_block(file: ImageFile) -> Block:
    """The reference to an image that `store.images` keeps."""
    return {
        "type": "image",
        "sha256": file.sha256,
        "width": file.width,
        "height": file.height,
        "num_bytes": len(file.data),
    }


def is_reference(block: Any) -> bool:
    """Whether it names an image of the store."""
    return isinstance(block, Mapping) and block.get("type") == "image" and isinstance(block.get("sha256"), str)


def references_of(content: Any) -> Iterator[Mapping[str, Any]]:
    """Of one content, in order."""
    if isinstance(content, list | tuple):
        yield from (block for block in content if is_reference(block))


def references_in(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of all messages, in order."""
    return [block for message in messages for block in references_of(message.get("content"))]


def text_of(content: Any) -> str:
    """The texts of a content, joined."""
    if isinstance(content, list | tuple):
        return "".join(str(block.get("text", "")) for block in content if isinstance(block, Mapping))
    return content if isinstance(content, str) else ""
