"""A task's first messages as agents read them: images in data: URLs, in the form of OpenAI's Chat Completions.

stored    {"type": "image", "sha256": "9f3a…", "width": 640, "height": 480, "num_bytes": 31007}
agent     {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}
stdin     [image: in the task file]
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sampler.core.rendering.reply_message import Message
from sampler.core.rendering.template import ChatTemplate
from shared.documents.content import Block, is_reference, references_in
from shared.errors import ConfigError
from shared.images.header import data_url

IMAGE_LINE = "[image: in the task file]"
ReadFile = Callable[[str], Awaitable[bytes]]  # of an image, by its digest; raises DataError


async def agent_messages(messages: Sequence[Message], template: ChatTemplate, read: ReadFile) -> list[Message]:
    """Those without images are the same objects. Raises ConfigError for images that the model cannot be shown."""
    if references_in(messages) and template.require_images() is None:
        raise ConfigError("the model reads texts alone, and the task has images")
    return [await _with_files(message, read) if references_in([message]) else message for message in messages]


def prompt_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages of an agent as one text."""
    return "\n\n".join(_text(message["content"]) for message in messages)


async def _with_files(message: Message, read: ReadFile) -> Message:
    blocks = [await _with_file(block, read) if is_reference(block) else block for block in message["content"]]
    return {**message, "content": blocks}


async def _with_file(reference: Block, read: ReadFile) -> Block:
    data = await read(str(reference["sha256"]))
    url = await asyncio.to_thread(data_url, data, "an image of the task")
    return {"type": "image_url", "image_url": {"url": url}}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) if block["type"] == "text" else IMAGE_LINE for block in content)
