"""All stored documents of one episode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.documents import DBRecordData, Record, Task
from shared.documents.tool_schemas import ToolSchemas
from shared.episodes.state import EpisodeState
from shared.store import Store


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """All stored documents of one record."""

    record: Record
    task: Task | None
    state: EpisodeState
    data: Sequence[DBRecordData]  # one for each policy that took turns
    settings: Sequence[str]  # ids of its sampler's settings
    tools: Mapping[str, ToolSchemas]  # by hash


async def read_episode(store: Store, record: Record) -> StoredEpisode:
    data = await store.data.find({"record": record.id})
    dispatches = await store.records.dispatches_of([record.id])
    settings = [settings.id for settings in await store.settings.of_worker(record.worker)]
    tools = await store.tool_schemas.get_many(sorted({dispatch.tools_hash for dispatch in dispatches[record.id]}))
    state = EpisodeState(record, dispatches[record.id])
    return StoredEpisode(record, await store.tasks.get(record.task), state, data, settings, tools)
