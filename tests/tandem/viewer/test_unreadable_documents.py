"""A document that no model forbids, or that fits none, is named by the page that cannot be made of it, with the query for it."""

import logging
import random
from typing import Any

import pytest
from bson import json_util

from shared.store import Store
from tandem.viewer.page_request import in_url
from tests.shared.episodes import whole_run
from tests.tandem.viewer.conftest import Client

RECORD_PAGES = ("/rollouts/{record}", "/rollouts/{record}/tokens", "/rollouts/{record}.json")


@pytest.fixture
async def record(store: Store) -> str:
    await whole_run(store)
    found = await store.database["records"].find_one({"status": "ready"}, sort=[("_id", 1)])
    assert found is not None
    return str(found["_id"])


async def change(store: Store, collection: str, where: dict[str, Any], values: dict[str, Any]) -> str:
    found = await store.database[collection].find_one_and_update(where, {"$set": values}, sort=[("_id", 1)])
    assert found is not None
    return str(found["_id"])


@pytest.mark.parametrize("field", ["response.output_ids", "response.output_logprobs", "prompt_ids"])
async def test_ids_of_seven_bytes_are_named_with_their_query(
    store: Store, viewer: Client, record: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = await change(store, "dispatched_sampling_tasks", {"record": record}, {field: b"1234567"})
    with caplog.at_level(logging.ERROR):
        answer = await viewer.get(f"/runs/{store.run}/rollouts/{in_url(record)}/tokens.json")
    assert answer.status_code == 500
    said = answer.json()
    assert said["error"].startswith(f"dispatched_sampling_tasks {name}: {field}: 7 bytes; expected 4 for each token")
    where = json_util.loads(said["query"]["compass"])
    assert await store.database["dispatched_sampling_tasks"].count_documents(where) == 1
    html = (await viewer.get(f"/runs/{store.run}/rollouts/{in_url(record)}/tokens")).text
    assert f"dispatched_sampling_tasks {name}" in html
    assert "db.getCollection(" in html
    assert "Traceback" in caplog.text, "the terminal says where"


@pytest.mark.parametrize("page", RECORD_PAGES)
async def test_a_record_that_does_not_fit_is_named_with_its_query(
    store: Store, viewer: Client, record: str, page: str
) -> None:
    await change(store, "records", {"_id": record}, {"a_key_of_compass": 1})
    answer = await viewer.get(f"/runs/{store.run}{page.format(record=in_url(record))}")
    assert answer.status_code == 500
    for text in ("a_key_of_compass", record, "records"):
        assert text in answer.text


PAGES = ("", "/timeline", "/tasks", "/steps", "/steps/main/1", "/tools", "/ledger", "/search", "/rollouts/{record}")
PAGES += ("/rollouts/{record}/tokens", "/groups/{task}", "/groups/{task}/tree", "/versions?a=0&b=1")
WRONG: tuple[Any, ...] = ("text", -1, 1e400, None, [], {}, [None], {"a": 1}, b"123", True, [["x", "y", "z"]], 2**62)


@pytest.mark.parametrize(
    "collection", ["records", "tasks", "record_data", "dispatched_sampling_tasks", "trained_steps"]
)
async def test_no_value_of_any_field_is_a_bare_500(store: Store, viewer: Client, record: str, collection: str) -> None:
    """Each field of one document in turn, of a wrong value that is drawn: every page answers, in words."""
    where = {"dispatched_sampling_tasks": {"record": record}, "records": {"_id": record}}.get(collection, {})
    documents, draw = store.database[collection], random.Random(0)
    whole = await documents.find_one(where, sort=[("_id", 1)])
    assert whole is not None
    task = record.rpartition(":")[0].rpartition(":")[0]
    ids = {"record": in_url(record), "task": in_url(task)}
    named = 0
    for field in [name for name in whole if name != "_id"]:
        await documents.replace_one({"_id": whole["_id"]}, {**whole, field: draw.choice(WRONG)})
        for page in draw.sample(PAGES, 5):
            answer = await viewer.get(f"/runs/{store.run}{page.format(**ids)}")
            assert answer.status_code in (200, 400, 404, 500, 503), (field, page)
            assert "<h1>" in answer.text, (field, page, answer.text[:300])
            named += answer.status_code == 500 and whole["_id"] in answer.text
    assert named, "pages name the document"
