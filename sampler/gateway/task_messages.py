"""A task's first messages as agents read them: images in data: URLs, in the form of OpenAI's Chat Completions.

stored    {"type": "image", "sha256": "9f3a…", "width": 640, "height": 480, "num_bytes": 31007}
agent     {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}
stdin     [image: in the task file]
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sampler.core.episode.images import ImageFiles
from sampler.core.rendering.reply_message import Message
from sampler.core.rendering.template import ChatTemplate
from shared.documents.content import references_in
from shared.errors import ConfigError

IMAGE_LINE = "[image: in the task file]"


async def shown_to_agents(messages: Sequence[Message], template: ChatTemplate, images: ImageFiles) -> list[Message]:
    """Raises ConfigError for images that the model cannot be shown, and DataError for one that is not in the store."""
    if references_in(messages):
        if template.require_images() is None:
            raise ConfigError("the model reads texts alone, and the task has images")
        return await images.with_data_urls(messages)
    return list(messages)


def prompt_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages of an agent as one text."""
    return "\n\n".join(_text(message["content"]) for message in messages)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) if block["type"] == "text" else IMAGE_LINE for block in content)
