"""An episode as spans: `invoke_agent` the attempt, below it `chat` each request, and `execute_tool` each tool call.

    record ─▶ trace (id of the run's name and the record's id)      dispatch, tool call ─▶ span (id of theirs)

Ids are hashes of document ids, so a second export is the same spans. Names are those of OpenTelemetry's GenAI conventions; what
only training has is `tandem.…`. Attributes are bounded (`messages.py`); token ids and log-probs stay in the database.

A document says when a request was written and when its results were, not when the reply ended: the calls of a turn are taken to
have run together at its end, each as long as it took.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from shared.documents import DispatchedSamplingTask, Record, Task
from shared.documents.content import Block
from shared.documents.packed import unpack_floats
from shared.documents.states import DispatchStatus, RecordStatus
from shared.documents.tool_schemas import ToolSchemas
from shared.episodes.images import EpisodeImages
from tandem.traces.messages import as_json, bounded, input_messages, output_messages, text_message

Value = str | bool | int | float | list[int] | list[str]
Attributes = dict[str, Value]
PROVIDER = "tandem"
MOST_LISTED = 100  # entries of a list attribute, the last ones
MAX_TOOLS_CHARS = 64_000
WRONG = (
    DispatchStatus.FAILED,
    DispatchStatus.TOOL_FAILED,
    DispatchStatus.FORMAT_ERROR,
    DispatchStatus.REPEAT_ERROR,
    DispatchStatus.CANCELLED,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Times are nanoseconds since 1970 (UTC). `error`: None if it went well."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    to_engine: bool = False  # a request to another process


@dataclass(frozen=True, slots=True)
class Episode:
    """The documents of one attempt. `trained_steps`: of the record's data, all policies."""

    record: Record
    task: Task | None
    dispatches: Sequence[DispatchedSamplingTask]
    trained_steps: Sequence[int]
    tools: Mapping[str, ToolSchemas]


def spans_of(run: str, episode: Episode) -> Iterator[Span]:
    record = episode.record
    trace, root = trace_id(run, record.id), _id(8, "span", run, record.id)
    start, end = _limits(episode)
    images = EpisodeImages.of(episode.dispatches, _query_blocks(episode))
    yield Span(
        trace,
        root,
        b"",
        f"invoke_agent {record.policy}",
        start,
        end,
        _of_episode(run, episode, images),
        error=record.error or "failed" if record.status is RecordStatus.FAILED else None,
    )
    for dispatch in episode.dispatches:
        sent_at, finished_at = _ns(dispatch.created_at) or start, _ns(dispatch.finished_at) or end
        finished_at = max(sent_at, finished_at)
        longest = max((call.duration_s for call in dispatch.tool_calls), default=0.0)
        replied = max(sent_at, finished_at - _seconds(longest))
        wrong = (dispatch.error or dispatch.status.value) if dispatch.status in WRONG else None
        span = _id(8, "span", run, dispatch.id)
        named = f"chat {dispatch.policy or record.policy}"
        yield Span(
            trace, span, root, named, sent_at, replied, _of_turn(run, record, dispatch, images), wrong, to_engine=True
        )
        for number, call in enumerate(dispatch.tool_calls):
            attributes: Attributes = {
                "gen_ai.operation.name": "execute_tool",
                "session.id": record.task,
                "openinference.span.kind": "TOOL",
                "gen_ai.tool.name": bounded(call.name, 200),
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.arguments": bounded(call.arguments),
                "gen_ai.tool.call.result": bounded(images.text(call.blocks or call.result)),
                "tandem.dispatch": dispatch.id,
                "tandem.duration_s": call.duration_s,
                **({"gen_ai.tool.call.id": bounded(call.id, 200)} if call.id else {}),
                **({"error.type": "tool_error"} if call.is_error else {}),
            }
            yield Span(
                trace,
                _id(8, "call", run, dispatch.id, str(number)),
                root,
                f"execute_tool {bounded(call.name, 200)}",
                replied,
                replied + _seconds(call.duration_s),
                attributes,
                error=bounded(call.result, 1_000) if call.is_error else None,
            )


def _query_blocks(episode: Episode) -> list[Block]:
    return [] if episode.task is None else episode.task.payload.query_blocks


def _of_episode(run: str, episode: Episode, images: EpisodeImages) -> Attributes:
    record, task, dispatches = episode.record, episode.task, episode.dispatches
    query = "" if task is None else images.text(task.payload.query_blocks or task.payload.query)
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "invoke_agent",
        "openinference.span.kind": "AGENT",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.agent.name": record.policy,
        "gen_ai.request.model": record.policy,
        "gen_ai.conversation.id": record.id,
        "session.id": record.task,  # a group's episodes side by side
        "gen_ai.usage.input_tokens": sum(dispatch.usage.get("prompt", 0) for dispatch in dispatches),
        "gen_ai.usage.output_tokens": sum(dispatch.usage.get("completion", 0) for dispatch in dispatches),
        "gen_ai.input.messages": None if task is None else text_message("user", query),
        "gen_ai.output.messages": None if record.answer is None else text_message("assistant", record.answer),
        "gen_ai.tool.definitions": _definitions(episode),
        "tandem.run": run,
        "tandem.record": record.id,
        "tandem.task": record.task,
        "tandem.tid": record.tid,
        "tandem.source": record.source,
        "tandem.split": record.split,
        "tandem.slot": record.traj_id,
        "tandem.attempt": record.attempt,
        "tandem.worker": record.worker,
        "tandem.status": record.status.value,
        "tandem.termination": record.termination,
        "tandem.reward": record.score,
        "tandem.advantage": record.advantage,
        "tandem.reward_details": bounded(as_json(record.reward_details)) if record.reward_details else None,
        "tandem.reason": None if record.reason is None else bounded(record.reason),
        "tandem.weight_versions": list(record.policy_versions)[-MOST_LISTED:] or None,
        "tandem.trained_steps": list(episode.trained_steps)[-MOST_LISTED:] or None,
        "tandem.num_turns": record.num_turns,
        "error.type": record.termination if record.status is RecordStatus.FAILED else None,
    }
    return _stated(attributes)


def _definitions(episode: Episode) -> str | None:
    """The tools of the first request that had any."""
    named = next((dispatch.tools_hash for dispatch in episode.dispatches if dispatch.tools_hash), None)
    schemas = None if named is None else episode.tools.get(named)
    if schemas is None:
        return None
    text = f"[{', '.join(schemas.tools)}]"
    return text if len(text) <= MAX_TOOLS_CHARS else as_json(schemas.names()[:MOST_LISTED])


def _of_turn(run: str, record: Record, dispatch: DispatchedSamplingTask, images: EpisodeImages) -> Attributes:
    params, response = dispatch.sampling_params, dispatch.response
    policy = dispatch.policy or record.policy
    logprobs = unpack_floats(response.output_logprobs) if response is not None else np.zeros(0)
    versions = [version for version, _ in dispatch.weight_versions]
    model = dispatch.played_by.model if dispatch.played_by is not None else None
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "chat",
        "session.id": record.task,
        "openinference.span.kind": "LLM",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.conversation.id": record.id,
        "gen_ai.request.model": policy,
        "gen_ai.response.model": model or (f"{dispatch.sampled_by or policy}:{versions[-1]}" if versions else None),
        "gen_ai.response.id": dispatch.id,
        "gen_ai.response.finish_reasons": None if response is None else [response.finish_reason],
        "gen_ai.request.temperature": _number(params.get("temperature")),
        "gen_ai.request.top_p": _number(params.get("top_p")),
        "gen_ai.request.max_tokens": params.get("max_new_tokens")
        if isinstance(params.get("max_new_tokens"), int)
        else None,
        "gen_ai.usage.input_tokens": dispatch.usage.get("prompt"),
        "gen_ai.usage.output_tokens": dispatch.usage.get("completion"),
        "gen_ai.usage.cache_read.input_tokens": dispatch.usage.get("cached"),
        "gen_ai.input.messages": input_messages(dispatch.messages, images),
        "gen_ai.output.messages": output_messages(dispatch),
        "tandem.run": run,
        "tandem.dispatch": dispatch.id,
        "tandem.turn": dispatch.turn,
        "tandem.thread": dispatch.thread,
        "tandem.status": dispatch.status.value,
        "tandem.service": dispatch.service,
        "tandem.weight_versions": versions[-MOST_LISTED:] or None,
        "tandem.advantage": dispatch.advantage,
        "tandem.reward": dispatch.score,
        "tandem.logprob_mean": float(np.mean(logprobs)) if len(logprobs) else None,
        "tandem.tools_hash": dispatch.tools_hash or None,
        "tandem.continuations": dispatch.continuations or None,
        "error.type": dispatch.status.value if dispatch.status in WRONG else None,
    }
    return _stated(attributes)


def _stated(attributes: Mapping[str, Value | None]) -> Attributes:
    """Those that have a value; JSON receivers refuse nan and inf."""
    return {
        name: value
        for name, value in attributes.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _limits(episode: Episode) -> tuple[int, int]:
    """From the first of its documents' times to the last."""
    moments = [episode.record.created_at, episode.record.finished_at]
    moments += [time for dispatch in episode.dispatches for time in (dispatch.created_at, dispatch.finished_at)]
    times = [ns for ns in map(_ns, moments) if ns is not None]
    return min(times, default=0), max(times, default=0)


def _ns(time: datetime | None) -> int | None:
    return None if time is None else round(time.replace(tzinfo=UTC).timestamp() * 1_000) * 1_000_000


def _seconds(duration_s: float) -> int:
    return round(max(0.0, duration_s) * 1e9) if math.isfinite(duration_s) else 0


def trace_id(run: str, record_id: str) -> bytes:
    """Of an episode: 16 bytes."""
    return _id(16, "trace", run, record_id)


def _id(size: int, *parts: str) -> bytes:
    return hashlib.sha256("\n".join(parts).encode()).digest()[:size]
