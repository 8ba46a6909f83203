"""Tool lists: the hash covers what the model received, and every list fits a document."""

import json
from typing import Any

from bson import encode

from shared.documents.tool_schemas import HASH_CHARS, MOST_BYTES, ToolSchemas, hash_of
from shared.store import Store
from tandem.audit.report import Check
from tandem.audit.run import audit
from tests.shared.episodes import CALCULATOR, SCHEMAS, whole_run


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def test_the_hash_is_that_of_the_list_in_its_order_and_no_tools_have_none() -> None:
    a, b = tool("a", description="x\ny"), tool("b")
    hashes = {hash_of(tools) for tools in ([a], [b], [a, b], [b, a], [tool("a", description="x y")])}
    assert len(hashes) == 5
    assert {len(found) for found in hashes} == {HASH_CHARS}
    assert hash_of([]) == hash_of(None) == ""
    assert ToolSchemas.of([a, b]).is_whole()
    assert not ToolSchemas.of([a, b]).model_copy(update={"tools": [json.dumps(a)]}).is_whole()


async def test_schemas_with_names_that_no_document_field_may_have_round_trip(store: Store) -> None:
    odd = tool("odd", description="é \ud800 \0 $x", parameters={"$ref": "a", "$id": "b", "a.b": {"": 1}})
    schemas = ToolSchemas.of([odd, {"name": "bare"}])
    await store.tool_schemas.keep(schemas)
    found = (await store.tool_schemas.get_many([schemas.id]))[schemas.id]
    assert [json.loads(line) for line in found.tools] == [odd, {"name": "bare"}]
    assert found.is_whole()
    assert found.names() == ["odd", "?"]
    assert '"é ' in found.tools[0], "readable"


async def test_a_list_that_is_too_large_is_cut_with_a_count(store: Store) -> None:
    tools = [tool(f"t{n}", description="ü" * (MOST_BYTES // 8)) for n in range(9)]  # two bytes each
    schemas = ToolSchemas.of(tools)
    assert (len(schemas.tools), schemas.left_out, schemas.id) == (3, 6, hash_of(tools))
    assert len(encode(schemas.to_mongo())) < MOST_BYTES + 1000
    await store.tool_schemas.keep(schemas)
    assert ToolSchemas.of([tool("huge", description="x" * MOST_BYTES)]).left_out == 1


async def test_runs_of_an_earlier_version_are_read_and_missing_lists_are_reported(store: Store) -> None:
    await whole_run(store)
    earlier = {"$set": {"tools_hash": "0123456789abcdef"}}
    await store.database["dispatched_sampling_tasks"].update_many({}, earlier)
    await store.database["tool_schemas"].drop()
    report = await audit(store)
    assert report.ok, report
    assert report.results[Check.TOOLS].note == "an earlier version did not store its 1 lists"


async def test_the_audit_counts_every_list_once_however_many_requests_name_it(store: Store) -> None:
    await whole_run(store)
    assert (await audit(store)).results[Check.TOOLS].examined == 1
    assert SCHEMAS.names() == [CALCULATOR["function"]["name"]]  # type: ignore[index]  # it is there
