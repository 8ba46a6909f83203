"""What the model reads of a tool's answer: one bounded text, whatever the blocks it came in; and what is kept beside it.

Text is taken as it is. Structured content is shown as JSON where there is no text. Images and other data become a marker with
their size. A text beyond the bounds keeps its beginning and its end; the marker in between says how much is missing. Where the
text says less than the answer did, `raw` keeps the answer, bounded.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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

from sampler.tools.limits import ToolLimits

# Character ranges of a text's tokens, in order.
Borders = Callable[[str], Sequence[tuple[int, int]]]

# Of one text within a raw answer whose whole is too long: its structure matters more than a picture's bytes.
_MAX_RAW_TEXT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`is_error`: the tool answered, with an error; that is part of the episode. `cut_chars`: how much was left out.

    `raw`: the answer as JSON text, where `text` does not say all of it.
    """

    text: str
    is_error: bool
    duration_s: float
    cut_chars: int = 0
    raw: str | None = None
    retries: int = 0


def to_result(
    answer: CallToolResult, duration_s: float, limits: ToolLimits, borders: Borders | None = None, retries: int = 0
) -> ToolResult:
    text = "\n".join(_block_text(block) for block in answer.content)
    if not text and answer.structured_content is not None:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    if not text and answer.is_error:
        text = "the tool failed without a message"
    kept, cut_chars = bounded(_storable(text), limits, borders)
    plain = all(isinstance(block, TextContent) for block in answer.content) and answer.structured_content is None
    raw = None if plain and not cut_chars else raw_text(answer, limits.max_raw_chars)
    return ToolResult(kept, bool(answer.is_error), duration_s, cut_chars, raw, retries)


def bounded(text: str, limits: ToolLimits, borders: Borders | None = None) -> tuple[str, int]:
    """The text within the limits, and how many characters it lost. Never above `max_result_chars` and `max_result_tokens`."""
    kept, cut_chars = _within_chars(text, limits.max_result_chars)
    # No token is shorter than a byte, so a short text needs no tokenizer; one more for a tokenizer that adds a space.
    if borders is None or limits.max_result_tokens is None or len(kept.encode()) < limits.max_result_tokens:
        return kept, cut_chars
    return _within_tokens(text, kept, cut_chars, limits.max_result_tokens, borders)


def raw_text(answer: CallToolResult, max_chars: int) -> str:
    """The answer as JSON text. Where that is too long its long texts are clipped, then its end."""
    whole = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = json.dumps(whole, ensure_ascii=False)
    if len(text) > max_chars:
        text = json.dumps(_clipped(whole, min(_MAX_RAW_TEXT_CHARS, max_chars // 2)), ensure_ascii=False)
    return _storable(text[:max_chars])


def _storable(text: str) -> str:
    """Without half surrogate pairs, which JSON may spell and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def _within_chars(text: str, max_chars: int) -> tuple[str, int]:
    if len(text) <= max_chars:
        return text, 0
    room = max(0, max_chars - len(_marker(len(text))))
    head, tail = room - room // 4, room // 4
    cut_chars = len(text) - head - tail
    kept = text[:head] + _marker(cut_chars) + (text[-tail:] if tail else "")
    return kept[:max_chars], cut_chars


def _within_tokens(text: str, kept: str, cut_chars: int, max_tokens: int, borders: Borders) -> tuple[str, int]:
    """`kept`: `text` within its characters, `cut_chars` fewer. Cuts lie at borders of its tokens; nothing is decoded."""
    tokens = borders(kept)
    if len(tokens) <= max_tokens:
        return kept, cut_chars
    # A text that was cut before is cut again from both of its kept ends, so that one marker is left.
    room = max_tokens - len(borders(_marker(len(text))))
    while room > 0:
        head_end = tokens[room - room // 4 - 1][1]
        tail_length = len(kept) - tokens[-(room // 4)][0] if room // 4 else 0
        cut_chars = len(text) - head_end - tail_length
        short = text[:head_end] + _marker(cut_chars) + (text[-tail_length:] if tail_length else "")
        excess = len(borders(short)) - max_tokens  # the marker may merge with its neighbors
        if excess <= 0:
            return short, cut_chars
        room -= excess
    room = max_tokens  # too small for a marker
    while room > 0:
        short = kept[: tokens[room - 1][1]]
        excess = len(borders(short)) - max_tokens  # the last token may be a part of a character
        if excess <= 0:
            return short, len(text) - len(short)
        room -= excess
    return "", len(text)


def _marker(cut_chars: int) -> str:
    return f"\n[… {cut_chars} characters left out …]\n"


def _clipped(value: Any, max_chars: int) -> Any:
    if isinstance(value, str) and len(value) > max_chars:
        return f"{value[:max_chars]}… [{len(value) - max_chars} more characters]"
    if isinstance(value, dict):
        return {key: _clipped(item, max_chars) for key, item in value.items()}
    if isinstance(value, list):
        return [_clipped(item, max_chars) for item in value]
    return value


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {_num_bytes(block.data)} bytes, not shown]"
        case ResourceLink():
            return f"[resource: {block.name} at {block.uri}]"
        case EmbeddedResource():
            inner = block.resource
            if isinstance(inner, BlobResourceContents):
                return f"[resource: {inner.uri}, {_num_bytes(inner.blob)} bytes, not shown]"
            return inner.text


def _num_bytes(base64_text: str) -> int:
    return len(base64_text) * 3 // 4 - base64_text[-2:].count("=")
