"""Converts a tool's answer into one bounded text for the model, from blocks of any kind, and the raw answer that is stored
with it.

Text stays as it is. Structured content is shown as JSON if there is no text. Images (for models of text) and other data become a
marker with their size. A text beyond the bounds keeps its beginning and end, with a marker for the cut length in between. If the
text contains less than the answer, `raw` stores the answer, bounded, unless the bound removes everything that the text lacks.

Many servers send a result twice, as text and as equal structured content; it is stored once.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

from sampler.core.tools.limits import ToolLimits
from shared.documents.content import Block
from shared.outside_text import storable

# Character ranges of a text's tokens, in order.
OffsetsOf = Callable[[str], Sequence[tuple[int, int]]]

# Bound of one text within an over-long raw answer: its structure matters more than a picture's bytes.
_MAX_RAW_TEXT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`is_error`: the tool answered with an error, which is part of the episode. `cut_chars`: number of removed characters.

    `raw`: the answer as JSON text, if `text` lacks a part of it. `blocks`: texts and references to images, if it shows images
    (`image_results`). `whole`: the text before bounding, and `answer` its source;
    both are not stored.
    """

    text: str
    is_error: bool
    duration_s: float
    cut_chars: int = 0
    raw: str | None = None
    retries: int = 0
    blocks: list[Block] = field(default_factory=list)
    whole: str = field(default="", repr=False)
    answer: CallToolResult | None = field(default=None, repr=False)


def to_result(
    answer: CallToolResult, duration_s: float, limits: ToolLimits, offsets: OffsetsOf | None = None, retries: int = 0
) -> ToolResult:
    text = "\n".join(block_text(block) for block in answer.content)
    plain = all(isinstance(block, TextContent) for block in answer.content)
    if not text and answer.structured_content is not None:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    else:
        plain = plain and (answer.structured_content is None or _says_it_twice(answer))
    if not text and answer.is_error:
        text = "the tool failed without a message"
    whole = storable(text)
    shown, cut_chars = bounded(whole, limits, offsets)
    raw = None if plain and not cut_chars else raw_text(answer, limits.max_raw_chars)
    if plain and raw is not None and len(raw) <= len(shown) and _has_beginnings(shown, answer):
        raw = None  # bounded more tightly than the text
    return ToolResult(shown, bool(answer.is_error), duration_s, cut_chars, raw, retries, whole=whole, answer=answer)


def with_summary(result: ToolResult, summary: str, limits: ToolLimits, offsets: OffsetsOf | None = None) -> ToolResult:
    """The result with `summary` as the model's text; `raw` stores the answer."""
    shown, _ = bounded(storable(summary), limits, offsets)
    raw = result.raw
    if raw is None and result.answer is not None:
        raw = raw_text(result.answer, limits.max_raw_chars)
    return replace(result, text=shown, cut_chars=len(result.whole), raw=raw, blocks=[])


def bounded(text: str, limits: ToolLimits, offsets: OffsetsOf | None = None) -> tuple[str, int]:
    """The text within the limits, and the number of removed characters. At most `max_result_chars` and `max_result_tokens`."""
    head, tail = _ends_within_chars(text, limits.max_result_chars)
    shown = _joined(text, head, tail)
    max_tokens = limits.max_result_tokens
    # Every token has at least one byte, so a short text needs no tokenizer; one extra for a tokenizer that adds a space.
    if offsets is not None and max_tokens is not None and len(shown.encode()) >= max_tokens:
        head, tail = _ends_within_tokens(text, head, tail, limits, offsets)
    return _joined(text, head, tail), len(text) - len(head) - len(tail)


def raw_text(answer: CallToolResult, max_chars: int) -> str:
    """The answer as JSON text, without duplicates. If it is too long, its long texts are clipped, then its end."""
    twice = _says_it_twice(answer)
    whole = _dumped(answer, structured_content=None) if twice else _dumped(answer)
    text = json.dumps(whole, ensure_ascii=False)
    if len(text) > max_chars and twice:  # structured content is clipped text by text, while a JSON text loses its end
        whole = _dumped(answer, content=[block for block in answer.content if not isinstance(block, TextContent)])
        text = json.dumps(whole, ensure_ascii=False)
    if len(text) > max_chars:
        text = json.dumps(_clipped(whole, min(_MAX_RAW_TEXT_CHARS, max_chars // 2)), ensure_ascii=False)
    return storable(text[:max_chars])


def _dumped(answer: CallToolResult, **update: Any) -> dict[str, Any]:
    return answer.model_copy(update=update).model_dump(mode="json", by_alias=True, exclude_none=True)


def _has_beginnings(shown: str, answer: CallToolResult) -> bool:
    """Whether `shown` contains everything that a clipped answer has of its texts."""
    texts = [block.text for block in answer.content if isinstance(block, TextContent)]
    return all(storable(text[:_MAX_RAW_TEXT_CHARS]) in shown for text in texts)


def _says_it_twice(answer: CallToolResult) -> bool:
    """Whether its texts contain all structured content: one of them is its JSON, or they are the text or list in it.

    Servers wrap a result that is not an object: `{"result": …}`.
    """
    structured = answer.structured_content
    texts = [block.text for block in answer.content if isinstance(block, TextContent)]
    if structured is None or not texts:
        return False
    wrapped = structured["result"] if isinstance(structured, dict) and [*structured] == ["result"] else structured
    if isinstance(wrapped, str) and wrapped in texts:
        return True
    same_content = {_canonical(structured), _canonical(wrapped)}
    return any(_canonical_of(text) in same_content for text in texts) or (
        isinstance(wrapped, list)
        and len(wrapped) == len(texts)
        and all(
            item == text or _canonical(item) == _canonical_of(text) for item, text in zip(wrapped, texts, strict=True)
        )
    )


def _canonical_of(text: str) -> str | None:
    """None: not JSON."""
    try:
        return _canonical(json.loads(text))
    except (ValueError, RecursionError):  # a number with very many digits, or very deep nesting: not compared
        return None


def _canonical(value: Any) -> str:
    """Equal texts for equal JSON values, unlike `==`, which equates 1, 1.0 and true."""
    return json.dumps(value, sort_keys=True)


def _joined(text: str, head: str, tail: str) -> str:
    """Beginning and end with the marker between them; no marker if only a beginning is kept, or nothing is cut."""
    return head + _marker(len(text) - len(head) - len(tail)) + tail if tail else head


def _ends_within_chars(text: str, max_chars: int) -> tuple[str, str]:
    """The kept beginning and end; the end is empty if nothing is cut, or if there is no room for a marker."""
    if len(text) <= max_chars:
        return text, ""
    room = max_chars - len(_marker(len(text)))
    tail_chars = room // 4
    return (text[: room - tail_chars], text[-tail_chars:]) if tail_chars > 0 else (text[:max_chars], "")


def _ends_within_tokens(text: str, head: str, tail: str, limits: ToolLimits, offsets: OffsetsOf) -> tuple[str, str]:
    """The same by tokens, for ends within the character bound. Cuts lie between tokens; nothing is decoded."""
    max_tokens = limits.max_result_tokens or 0
    shown = _joined(text, head, tail)
    if len(offsets(shown)) <= max_tokens:
        return head, tail
    head_tokens = offsets(head)
    tail_tokens = offsets(tail) if tail else head_tokens if head == text else []
    tail_source = tail or head
    room = max_tokens - len(offsets(_marker(len(text))))
    while room // 4 > 0 and tail_tokens:
        num_tail = min(room // 4, len(tail_tokens))
        num_head = min(room - num_tail, len(head_tokens))
        ends = head[: head_tokens[num_head - 1][1]], tail_source[tail_tokens[-num_tail][0] :]
        short = _joined(text, *ends)
        excess = len(offsets(short)) - max_tokens  # the marker may merge with its neighbors
        if excess <= 0 and len(short) <= limits.max_result_chars:
            return ends
        room -= max(excess, 1)
    room = min(max_tokens, len(head_tokens))  # too small for a marker
    while room > 0:
        short = head[: head_tokens[room - 1][1]]
        excess = len(offsets(short)) - max_tokens  # the last token may be a part of a character
        if excess <= 0:
            return short, ""
        room -= excess
    return "", ""


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


def block_text(block: ContentBlock) -> str:
    """As a model of text reads it."""
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
