"""What an episode takes in the database: its texts, and at most 12 bytes for every token that was sampled."""

from typing import Any

from sampler.core.episode.episode import play
from scripts.bench.sampler_chat import Chat
from shared.store import Store
from tests.sampler.episodes import TEMPLATE, resources, samples
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks

TOKENS = 500
REPLY = (TEMPLATE.encode("the yellow numbers ") * TOKENS)[:TOKENS]


async def stored(store: Store, turns: int) -> tuple[int, int]:
    """(bytes beyond the text, tokens) of a group of two episodes, settled: BSON before the server compresses it."""
    for name in ("tasks", "records", "dispatched_sampling_tasks", "record_data"):
        await store.database[name].delete_many({})
    await import_tasks(store, 1, num_generations=2)
    async with resources(store, samples(REPLY), max_turns=turns, max_new_tokens=TOKENS, max_tokens=10**6) as shared:
        for _ in range(2):
            assert await play(Chat(shared, await claim(store))) is not None
    assert await settle_next(store, "w", shared.config) is not None
    total = text = 0
    for name in ("tasks", "records", "dispatched_sampling_tasks", "record_data"):
        documents: list[dict[str, Any]] = await store.database[name].find().to_list()
        total += (await store.database.command("collStats", name))["size"]
        if name == "dispatched_sampling_tasks":
            assert len(documents) == 2 * turns
            text = sum(len(d["response"]["text"]) + sum(len(m["content"]) for m in d["messages"]) for d in documents)
    return total - text, 2 * turns * TOKENS


async def test_storage_is_linear_in_turns_with_at_most_12_bytes_a_token_beyond_the_text(store: Store) -> None:
    found = {turns: await stored(store, turns) for turns in (4, 8, 12)}
    assert all(size <= 12 * tokens for size, tokens in found.values()), found
    first, second = found[8][0] - found[4][0], found[12][0] - found[8][0]
    assert abs(second - first) < 0.01 * first, found
