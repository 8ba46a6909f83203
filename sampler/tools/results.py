"""What the model reads of a tool's answer: one bounded text, whatever the blocks it came in."""

import json
from dataclasses import dataclass

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`is_error`: the tool answered, with an error; that is part of the episode. `cut_chars`: how much was left out."""

    text: str
    is_error: bool
    duration_s: float
    cut_chars: int = 0


def to_result(answer: CallToolResult, duration_s: float, max_chars: int) -> ToolResult:
    text = "\n".join(_block_text(block) for block in answer.content)
    if not text and answer.structured_content is not None:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    if not text and answer.is_error:
        text = "the tool failed without a message"
    return bounded(text, bool(answer.is_error), duration_s, max_chars)


def bounded(text: str, is_error: bool, duration_s: float, max_chars: int) -> ToolResult:
    """Keeps the beginning and the end; the marker in between says how much is missing. Never above `max_chars`."""
    if len(text) <= max_chars:
        return ToolResult(text, is_error, duration_s)
    room = max(0, max_chars - len(_marker(len(text))))
    head = room - room // 4
    tail = room // 4
    cut_chars = len(text) - head - tail
    kept = text[:head] + _marker(cut_chars) + (text[-tail:] if tail else "")
    return ToolResult(kept[:max_chars], is_error, duration_s, cut_chars)


def _marker(cut_chars: int) -> str:
    return f"\n[… {cut_chars} characters left out …]\n"


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
        case ResourceLink():
            return f"[resource: {block.name} at {block.uri}]"
        case EmbeddedResource():
            inner = block.resource
            if isinstance(inner, BlobResourceContents):
                return f"[resource: {inner.uri}, {len(inner.blob) * 3 // 4} bytes, not shown]"
            return inner.text
