"""What a turn's document has of its reply: the engine's answer, and the tool calls in it."""

from typing import Any

from pydantic import Field

from shared.documents.agent_use import AgentUse
from shared.documents.base import Document


class ToolCallResult(Document):
    """One tool call and its result. `result` is the text that the model read; `blocks`, where it read images too: all of it."""

    id: str | None = None  # call id in the model's message and the tool's
    name: str
    arguments: dict[str, Any]
    result: str
    is_error: bool
    duration_s: float
    cut_chars: int = 0  # characters of the answer missing in `result`; all of them if it is a summary
    raw: str | None = None  # the answer as JSON text, bounded; None if `result` contains all of it
    retries: int = 0
    blocks: list[dict[str, Any]] = []  # texts and references to images (`shared.documents.content`)
    summarized_by: AgentUse | None = None  # agent whose summary `result` is; with model None, no model wrote it


class SampledResponse(Document):
    """The engine's answer. `output_ids` (int32) and `output_logprobs` (float32) are packed, one entry per sampled token.
    `message` is parsed from `text`; it omits content and reasoning that `text` contains verbatim. `in_reasoning`: the prompt
    opened the reasoning, so that `text` begins inside of it. `truncated_logprobs`: they are of what the request's
    top_p, top_k and min_p left, renormalized; else of the whole distribution."""

    text: str
    message: dict[str, Any]
    output_ids: bytes
    output_logprobs: bytes
    finish_reason: str
    in_reasoning: bool = False
    truncated_logprobs: bool = Field(False, exclude_if=lambda are: not are)


class SampledTokens(Document):
    """The part of a `SampledResponse` that training reads."""

    output_ids: bytes
    output_logprobs: bytes
    truncated_logprobs: bool = False
