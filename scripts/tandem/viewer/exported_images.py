"""Images in exported conversations: the file itself, as a data URL, in place of each reference.

    {"type": "image", "sha256": "9f3a…", …}  ─▶  {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}

So a line is whole by itself: OpenAI's format, which `tandem sft` reads too.
"""

from collections.abc import Mapping
from typing import Any

from shared.documents.content import Block, is_reference
from shared.store import Store

Row = dict[str, Any]


async def with_data_urls(store: Store, conversation: Row) -> Row:
    """The same object, if it shows no image. Raises DataError for an image that is not in the store."""
    messages = conversation["messages"]
    if not any(_shows_images(message) for message in messages):
        return conversation
    return {**conversation, "messages": [await _with_data_urls(store, message) for message in messages]}


async def _with_data_urls(store: Store, message: Row) -> Row:
    if not _shows_images(message):
        return message
    blocks = [await _data_url(store, block) if is_reference(block) else block for block in message["content"]]
    return {**message, "content": blocks}


def _shows_images(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list | tuple) and any(map(is_reference, content))


async def _data_url(store: Store, block: Block) -> Block:
    from shared.images.header import data_url

    sha256 = str(block["sha256"])
    data = await store.images.read(sha256)
    return {"type": "image_url", "image_url": {"url": data_url(data, f"image {sha256}")}}
