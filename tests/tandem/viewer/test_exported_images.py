"""Exported conversations have their images, and can be trained on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

from shared.documents.content import image_block
from shared.documents.images import ImageFile
from shared.images.source import bytes_of
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.image_files import image_file, valid
from tests.tandem.viewer.conftest import Client
from tests.tandem.viewer.stories import Told, tell
from trainer.sft.conversations import read_conversations

RUN = "exported-images"
RECORD = "main:train:0:t0:0:1"
GONE = "main:train:0:t0:1:1"
FILES = [image_file(valid(kind)) for kind in ("PNG", "JPEG", "WEBP")]


async def show(store: Store, record: str, *files: ImageFile) -> None:
    """In the first message of a record."""
    content: list[dict[str, Any]] = [{"type": "text", "text": "What?"}, *map(image_block, files)]
    values = {"messages": [{"role": "user", "content": content}]}
    await store.database["dispatched_sampling_tasks"].update_one({"record": record, "turn": 0}, {"$set": values})


@pytest.fixture(scope="module")
def run(mongod: Mongod) -> Iterator[str]:
    async def play() -> None:
        async with Store.open(mongod.connection_string, RUN) as store:
            await tell(store, lambda seq, slot: Told(score=1.0, replies=(("It is red.", ()),)), groups=1, slots=3)
            await store.images.keep(FILES)
            await show(store, RECORD, *FILES)
            await show(store, GONE, image_file(b"gone"))

    asyncio.run(play())
    yield RUN
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(RUN)


async def test_an_exported_conversation_has_its_images_and_is_read_for_training(
    viewer: Client, run: str, tmp_path: Path
) -> None:
    answer = await viewer.get(f"/runs/{run}/rollouts/{RECORD}/export/openai")
    (row,) = [json.loads(line) for line in answer.text.splitlines()]
    urls = [block["image_url"]["url"] for block in row["messages"][0]["content"][1:]]
    assert [url.partition(";")[0] for url in urls] == ["data:image/png", "data:image/jpeg", "data:image/webp"]
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps({"messages": row["messages"], "tools": row.get("tools")}) + "\n")
    (conversation,) = read_conversations(path)
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert [bytes_of(image, tmp_path, "image") for image in conversation.images] == [file.data for file in FILES]


async def test_an_image_that_is_gone_is_an_error_of_its_episode_alone(viewer: Client, run: str) -> None:
    answer = await viewer.get(f"/runs/{run}/groups/main:train:0:t0/export/openai")
    rows = {row["record"]: row for row in map(json.loads, answer.text.splitlines())}
    assert len(rows) == 3
    assert "not in the store" in rows[GONE]["error"]
    assert all("messages" in row for name, row in rows.items() if name != GONE)
