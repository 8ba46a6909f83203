"""Exports of a rollout, a group, a step or a search: every document as a line of JSON, or conversations in OpenAI's format."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from starlette.responses import Response, StreamingResponse

from shared.documents import Record
from shared.documents.packed import unpack_floats, unpack_ints
from shared.episodes.openai_messages import conversations
from shared.episodes.stored import StoredEpisode, read_episode
from shared.errors import DataError
from shared.store.views.groups import attempts_query
from shared.store.views.rollouts import search
from shared.store.views.steps import data_query
from tandem.viewer.exported_images import with_data_urls
from tandem.viewer.page_request import BadQuestion, PageRequest
from tandem.viewer.pages import plain
from tandem.viewer.rollout import episode_of
from tandem.viewer.search import chosen_filter, noted_records

MOST_EPISODES = 1_000  # of one file
PACKED = {"prompt_ids": unpack_ints, "output_ids": unpack_ints, "output_logprobs": unpack_floats}
FORMATS = ("jsonl", "openai")


async def rollout_export(request: PageRequest) -> Response:
    return _download(request, [(await episode_of(request)).record.id])


async def group_export(request: PageRequest) -> Response:
    query = attempts_query(request.id("gid"))
    return _download(request, [document["_id"] for document in await query.run(request.store.database)])


async def step_export(request: PageRequest) -> Response:
    text = request.id("step")
    if not text.isdecimal() or len(text) > 15:
        raise BadQuestion(f"step is {text[:80]!r}; expected a whole number")
    query = data_query(request.id("policy"), int(text))
    return _download(request, [document["record"] for document in await query.run(request.store.database)])


async def search_export(request: PageRequest) -> Response:
    chosen = chosen_filter(request)
    noted = await noted_records(request, chosen)
    documents, _ = await search(request.store.database, chosen, 0, MOST_EPISODES, noted=noted)
    return _download(request, [document["_id"] for document in documents])


def _download(request: PageRequest, records: Sequence[str]) -> Response:
    form = request.id("form")
    if form not in FORMATS:
        raise BadQuestion(f"the format is {form[:80]!r}; expected {' or '.join(FORMATS)}")
    lines = _lines(request, records[:MOST_EPISODES], form)
    name = f"{request.run.name}-{form}.jsonl"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)


async def _lines(request: PageRequest, records: Sequence[str], form: str) -> AsyncIterator[str]:
    for identity in records:
        try:
            record: Record | None = await request.store.records.get(identity)
        except DataError as exc:
            yield json.dumps({"record": identity, "error": str(exc)}) + "\n"
            continue
        if record is None:  # deleted while the file was written
            continue
        try:
            episode = await read_episode(request.store, record)
            rows = [whole(episode)] if form == "jsonl" else conversations(episode.state, episode.tools)
            if form == "openai":
                rows = [await with_data_urls(request.store, row) for row in rows]
        except DataError as exc:  # the others are still worth their file
            rows = [{"record": identity, "error": str(exc)}]
        for row in rows:
            yield json.dumps(row, ensure_ascii=False, default=str) + "\n"


def whole(episode: StoredEpisode) -> dict[str, Any]:
    """Every document of the episode, with token arrays as lists."""
    return {
        "record": readable(episode.record.to_mongo()),
        "task": None if episode.task is None else readable(episode.task.to_mongo()),
        "dispatches": [readable(turn.dispatch.to_mongo()) for turn in episode.state.turns],
        "record_data": [readable(data.to_mongo()) for data in episode.data],
        "tools": {name: schemas.schemas() for name, schemas in episode.tools.items()},
    }


def readable(value: Any, name: str = "") -> Any:
    """As JSON has it: packed arrays are lists, times ISO 8601."""
    if isinstance(value, Mapping):
        return {str(key): readable(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [readable(inner, name) for inner in value]
    if isinstance(value, bytes) and name in PACKED:
        return PACKED[name](value).tolist()
    return plain(value) if isinstance(value, bytes | datetime | float) else value
