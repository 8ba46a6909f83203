"""The page of a rollout: its conversation with reasoning, tool calls, results, durations and errors, and what the scorer said."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import PlainTextResponse, Response

from shared.documents import DBRecordData, Record, Task, ToolCallResult
from shared.documents.notes import MAX_NOTE_CHARS, Note
from shared.documents.states import BranchCause, ParentKind
from shared.documents.tool_schemas import ToolSchemas
from shared.episodes.images import EpisodeImages, Part
from shared.episodes.openai_messages import split_reply
from shared.episodes.state import EpisodeState, TurnState
from shared.episodes.stored import StoredEpisode, read_episode
from shared.store.views.query import Document, Query
from shared.store.views.rollouts import forks_query, record_queries, siblings, turn_query
from tandem.viewer.group import seconds_of
from tandem.viewer.images import known_images
from tandem.viewer.page_request import BadQuestion, NotThere, PageRequest

MOST_NAMED = 5  # documents that are missing


@dataclass(frozen=True, slots=True)
class SaidMessage:
    """One message that was new in a turn."""

    role: str
    text: str
    parts: list[Part]  # texts and images in order, of a content that is a list of blocks; else empty
    name: str | None
    call_id: str | None


@dataclass(frozen=True, slots=True)
class CallView:
    """One tool call. `arguments`: as JSON."""

    id: str | None
    name: str
    arguments: str
    result: str
    parts: list[Part]  # as of a message
    is_error: bool
    duration_s: float
    cut_chars: int
    retries: int
    summarized_by: str | None


@dataclass(frozen=True, slots=True)
class TurnView:
    number: int
    id: str
    policy: str | None  # another than the record's
    status: str
    error: str | None
    after: str  # how it relates to its parent
    messages: list[SaidMessage]
    reasoning: str
    reply: str
    raw: str
    calls: list[CallView]
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    versions: list[tuple[int, int]]
    finish: str | None
    service: str | None
    player: str | None  # the API model that took the turn
    seconds: float | None
    score: float | None
    advantage: float | None
    requested_by: str
    tools_hash: str
    is_open: bool
    query: Query


@dataclass(frozen=True, slots=True)
class ThreadView:
    label: str
    turns: list[TurnView]


@dataclass(frozen=True, slots=True)
class RolloutView:
    record: Record
    task: Task | None
    seconds: float | None
    threads: list[ThreadView]
    problems: list[str]
    missing: list[str]  # documents that others name and the database does not have, in words
    data: Sequence[DBRecordData]
    settings: Sequence[str]
    tools: Mapping[str, ToolSchemas]
    siblings: list[Document]
    forks: list[Document]
    notes: list[Note]
    max_note_chars: int
    queries: list[Query]


async def rollout_page(request: PageRequest) -> RolloutView:
    episode = await episode_of(request)
    record, state = episode.record, episode.state
    images, images_queries = await known_images(request.store, images_of(episode))
    forks = forks_query(record.policy, list({*record.traj, *(turn.dispatch.id for turn in state.turns)}))
    return RolloutView(
        record=record,
        task=episode.task,
        seconds=seconds_of(record.created_at, record.finished_at),
        threads=[
            ThreadView(thread.label(record.policy), [turn_view(turn, state, images) for turn in thread.turns])
            for thread in state.threads
        ],
        problems=state.problems,
        missing=_missing(episode),
        data=episode.data,
        settings=episode.settings,
        tools=episode.tools,
        siblings=await siblings(request.store.database, record.task),
        forks=await forks.run(request.store.database),
        notes=await request.store.notes.of(record.id),
        max_note_chars=MAX_NOTE_CHARS,
        queries=[*record_queries(record.id, record.task), forks, *images_queries],
    )


def _missing(episode: StoredEpisode) -> list[str]:
    record, stored = episode.record, {turn.dispatch.id for turn in episode.state.turns}
    missing = []
    if episode.task is None:
        missing.append(f"its task {record.task} is not stored: its question and its group cannot be shown")
    lost = [name for name in record.traj if name not in stored]
    if lost:
        named = ", ".join(lost[:MOST_NAMED]) + (", …" if len(lost) > MOST_NAMED else "")
        missing.append(f"turns that are not stored, {len(lost)} of {len(record.traj)}: {named}")
    hashes = {turn.dispatch.tools_hash for turn in episode.state.turns} - {""}
    lost = sorted(hashes - set(episode.tools))
    if lost:
        missing.append(f"the tools that the model received are not stored: {', '.join(lost[:MOST_NAMED])}")
    return missing


async def episode_of(request: PageRequest, identity: str | None = None) -> StoredEpisode:
    """Raises NotThere."""
    name = request.id("record_id") if identity is None else identity
    record = await request.store.records.get(name)
    if record is None:
        raise NotThere(f"run {request.run.name} has no rollout {name[:200]!r}")
    return await read_episode(request.store, record)


def images_of(episode: StoredEpisode) -> EpisodeImages:
    query = () if episode.task is None else episode.task.payload.query_blocks
    return EpisodeImages.of([turn.dispatch for turn in episode.state.turns], query)


def turn_view(turn: TurnState, state: EpisodeState, images: EpisodeImages) -> TurnView:
    d = turn.dispatch
    text, message = ("", {}) if d.response is None else (d.response.text, d.response.message)
    reasoning, reply = split_reply(text, message)
    sampled = len(turn.output_ids)
    return TurnView(
        number=d.turn,
        id=d.id,
        policy=None if turn.policy == state.record.policy else turn.policy,
        status=d.status.value,
        error=d.error,
        after=_after(turn),
        messages=[_message_view(message, images) for message in d.messages],
        reasoning=reasoning,
        reply=reply,
        raw=text,
        calls=[_call(call, images) for call in d.tool_calls],
        prompt_tokens=d.usage.get("prompt", turn.length - sampled),
        cached_tokens=d.usage.get("cached", 0),
        sampled_tokens=sampled,
        versions=d.weight_versions,
        finish=None if d.response is None else d.response.finish_reason,
        service=d.service,
        player=None if d.played_by is None else f"{d.played_by.model or 'no model answered'} of {d.played_by.agent}",
        seconds=seconds_of(d.created_at, d.finished_at),
        score=d.score,
        advantage=d.advantage,
        requested_by="" if d.client is None else f"{d.client.requested_by or 'its sampler'} ({d.client.cause})",
        tools_hash=d.tools_hash,
        is_open=turn.is_open,
        query=turn_query(d.id),
    )


def _after(turn: TurnState) -> str:
    if turn.kind is ParentKind.ROOT:
        return ""
    how = "continues" if turn.kind is ParentKind.BRIDGE else "forks from"
    cause = turn.dispatch.branch_cause
    why = "" if cause is BranchCause.CLEAN else f", {cause.value.replace('_', ' ')}"
    return f"{how} turn {turn.parent}, {turn.shared} tokens shared{why}"


def _call(call: ToolCallResult, images: EpisodeImages) -> CallView:
    summary = None if call.summarized_by is None else call.summarized_by.model or "no model: the head of the answer"
    return CallView(
        id=call.id,
        name=call.name,
        arguments=json.dumps(call.arguments, ensure_ascii=False, default=str),
        result=call.result,
        parts=images.parts(call.blocks),
        is_error=call.is_error,
        duration_s=call.duration_s,
        cut_chars=call.cut_chars,
        retries=call.retries,
        summarized_by=summary,
    )


def _message_view(message: Mapping[str, Any], images: EpisodeImages) -> SaidMessage:
    content = message.get("content")
    return SaidMessage(
        role=str(message.get("role", "message")),
        text=images.text(content),
        parts=images.parts(content),
        name=str(message["name"]) if message.get("name") else None,
        call_id=str(message["tool_call_id"]) if message.get("tool_call_id") else None,
    )


async def text_page(request: PageRequest) -> Response:
    """One text of a turn, whole, as a download: `part` is reply, messageN, resultN or rawN."""
    episode = await episode_of(request)
    number, part = request.number("turn", 0), request.text("part", "reply") or "reply"
    turn = next((turn for turn in episode.state.turns if turn.number == number), None)
    if turn is None:
        raise NotThere(f"{episode.record.id} has no turn {number}")
    try:
        text = _part(turn, part)
    except (LookupError, ValueError) as exc:
        raise BadQuestion(f"part is {part[:80]!r}; expected reply, message0, result0 or raw0") from exc
    name = f"turn-{number}-{part}.txt"
    return PlainTextResponse(text or "", headers={"content-disposition": f'attachment; filename="{name}"'})


def _part(turn: TurnState, part: str) -> str | None:
    if part == "reply":
        return turn.reply
    kind = part.rstrip("0123456789")
    index = int(part.removeprefix(kind))
    if kind == "message":
        return EpisodeImages.of([turn.dispatch]).text(turn.dispatch.messages[index].get("content"))
    call = turn.dispatch.tool_calls[index]
    if kind == "result":
        return call.result
    if kind == "raw":
        return call.raw
    raise LookupError(kind)
