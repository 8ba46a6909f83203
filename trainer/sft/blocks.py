"""Contents of conversations as blocks of text and images, and where each image is.

"content": "…"  or  [{"type": "text", "text": "…"}, {"type": "image", "path" | "url" | "base64": "…"}, …]
"images": [{"path": "…"}, …]     beside "messages", as in TRL: the images of blocks that name none, in their order; where no
                                 block is there, they stand before the text of the first message of the user
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.documents.content import IMAGE_BLOCKS
from shared.errors import ConfigError

SOURCES = ("path", "url", "base64", "image", "image_url")


def check_content(message: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError, which names the field, for what is neither text nor blocks."""
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if not isinstance(content, list):
        raise ConfigError(f'{where}: "content" is {type(content).__name__}; expected text, or a list of blocks')
    for index, block in enumerate(content):
        here = f"{where}: content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            continue
        if kind not in IMAGE_BLOCKS:
            raise ConfigError(
                f'{here} is of type {kind!r}; expected {{"type": "text", "text": "..."}} or {{"type": "image", "path": "..."}}'
            )
        if message["role"] == "assistant":
            raise ConfigError(f"{here} is an image; expected text alone in a reply: models here write text")


def with_images(
    messages: Sequence[dict[str, Any]], column: Any, where: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(messages whose image blocks are bare, the source of each image in order). Raises ConfigError for images without a block,
    and for a block without an image.
    """
    if column is not None and not (isinstance(column, list) and all(isinstance(image, dict | str) for image in column)):
        raise ConfigError(
            f'{where}: "images" is {type(column).__name__}; expected a list of paths or of {{"path": ...}}'
        )
    given = [{"path": image} if isinstance(image, str) else image for image in column or ()]
    blocks = [block for message in messages for block in _blocks(message) if block["type"] in IMAGE_BLOCKS]
    if given and not blocks:
        messages = _before_first_user_text(messages, len(given), where)
        blocks = [{"type": "image"}] * len(given)
    bare = sum(not any(name in block for name in SOURCES) for block in blocks)
    if bare != len(given):
        raise ConfigError(
            f'{where}: {bare} image blocks without "path", "url" or "base64", and {len(given)} entries of "images"; expected as '
            "many of one as of the other"
        )
    rest = iter(given)
    sources = [block if any(name in block for name in SOURCES) else next(rest) for block in blocks]
    return [_bare(message) for message in messages], sources


def as_blocks(message: dict[str, Any]) -> dict[str, Any]:
    """For templates of vision-language models, which read lists."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def as_text(message: dict[str, Any]) -> dict[str, Any]:
    """For templates of models of text."""
    return {**message, "content": "".join(texts_of(message))} if isinstance(message.get("content"), list) else message


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """The texts of its content."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content or () if block["type"] == "text"]


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{"type": "image"} if block["type"] in IMAGE_BLOCKS else block for block in _blocks(message)]
    return {**message, "content": blocks} if blocks else message


def _before_first_user_text(messages: Sequence[dict[str, Any]], count: int, where: str) -> list[dict[str, Any]]:
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise ConfigError(f'{where}: {count} entries of "images" and no message of role "user" that could show them')
    shown = as_blocks(messages[first])
    shown = {**shown, "content": [{"type": "image"}] * count + shown["content"]}
    return [*messages[:first], shown, *messages[first + 1 :]]
