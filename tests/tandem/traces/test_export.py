"""`tandem trace export` sends what the documents have, once however often it is sent, and tells what was not taken."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shared.errors import ConfigError
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.tasks.controllers import write_listed_tasks
from tandem import app
from tandem.traces.otlp import Exporter, NotReceived
from tandem.traces.spans import spans_of
from tests.shared.episodes import RECORD, an_episode, whole_run
from tests.tandem.traces.receiver import Receiver, attributes, receiver


@pytest.fixture
def received() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def export(mongod: Mongod, store: Store, received: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]  # a fixture's closure
    monkeypatch.setenv("DB_CONNECTION_STRING", mongod.connection_string)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    async def run(*arguments: str) -> Result:
        given = ["trace", "export", store.run, "--otlp", received.url, *arguments]
        return await asyncio.to_thread(CliRunner().invoke, app, given)

    return run


async def test_each_attempt_is_a_trace_of_its_requests_and_tool_calls(export, store, received) -> None:  # type: ignore[no-untyped-def]  # fixtures
    records = await whole_run(store)
    result = await export()
    assert result.exit_code == 0, result.output
    assert "4 episodes, 20 spans in 1 requests" in result.output
    assert set(received.paths) == {"/v1/traces"}
    roots = [span for span in received.spans if not span.parent_span_id]
    assert sorted(attributes(span)["tandem.record"] for span in roots) == sorted(records)
    root = next(span for span in roots if attributes(span)["tandem.record"] == RECORD)
    told = attributes(root)
    assert (root.name, told["gen_ai.operation.name"]) == ("invoke_agent main", "invoke_agent")
    assert (told["tandem.reward"], told["tandem.advantage"], told["tandem.trained_steps"]) == (0.0, 1.0, [1])
    assert told["tandem.weight_versions"] == [3, 4]
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (3 + 8 + 6, 6)
    assert json.loads(told["gen_ai.tool.definitions"])[0]["function"]["name"] == "calculator"
    below = [span for span in received.spans if span.parent_span_id == root.span_id]
    assert {span.trace_id for span in below} == {root.trace_id}
    assert [span.name for span in below] == ["chat main", "execute_tool calculator", "chat main", "chat main"]
    chat, call = attributes(below[0]), attributes(below[1])
    assert chat["gen_ai.response.id"] == f"{RECORD}:0"
    assert chat["tandem.logprob_mean"] == pytest.approx(-0.5)
    assert json.loads(chat["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "reply 0"}]
    assert (call["gen_ai.tool.call.arguments"], call["gen_ai.tool.call.result"]) == ('{"e": "2+2"}', "[4]")
    assert below[1].end_time_unix_nano - below[1].start_time_unix_nano == 250_000_000
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in received.spans)


async def test_a_second_export_is_the_same_spans(export, store, received) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    await export()
    first = {span.span_id: span for span in received.spans}
    received.requests.clear()
    await export()
    assert {span.span_id: span for span in received.spans} == first
    assert len(first) == len(received.spans) == 20, "each span has an id of its own"


async def test_a_steps_export_is_what_it_trained(export, store, received) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    result = await export("--step", "1")
    assert result.exit_code == 0, result.output
    exported = {attributes(span)["tandem.record"] for span in received.spans if not span.parent_span_id}
    assert exported == {"main:train:0:t0:0:1", "main:train:0:t0:1:1"}
    missing = await export("--step", "7")
    assert (missing.exit_code, "step 7 used no record" in missing.output) == (2, True)


async def test_an_export_continues_at_the_time_of_the_last_one(export, store, received) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    earlier = [{"$set": {"settled_at": {"$subtract": ["$settled_at", 60_000]}}}]
    await store.database["tasks"].update_one({"tid": "t1"}, earlier)
    result = await export()
    told = result.output.split("settled at ")[1].split(";")[0]
    received.requests.clear()
    assert "2 episodes, 10 spans" in (await export("--since", told)).output, "of that moment others may come"
    assert {attributes(span)["tandem.record"].split(":")[3] for span in received.spans if not span.parent_span_id} == {
        "t0"
    }


async def test_a_receiver_that_is_busy_is_asked_again_and_one_that_refuses_is_not(export, store, received) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    received.answers = [(503, {"Retry-After": "0"}), (429, {"Retry-After": "0"})]
    result = await export("--header", "x-mlflow-experiment-id=7")
    assert (result.exit_code, len(received.spans)) == (0, 20), result.output
    assert received.headers[0]["x-mlflow-experiment-id"] == "7"
    for status, headers in ((400, {}), *((moved, {"Location": f"{received.url}/elsewhere"}) for moved in (302, 307))):
        received.requests.clear()
        received.answers = [(status, headers)]
        result = await export()
        assert (result.exit_code, received.requests) == (1, [])
        assert f"refused 20 spans: HTTP {status}: not now" in result.output


async def test_rejected_spans_are_counted_in_the_output(export, store, received) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    received.rejected = 3
    result = await export()
    assert result.exit_code == 1
    assert "17 spans in 1 requests" in result.output
    assert "the receiver rejected 3 spans: too old" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--header", "Authorization: Bearer hunter2"),
        ("--header", "Authorization: Bearer hunter2=="),
        ("--header", "key=hunter2\u0436"),
        ("--otlp", "http://ann:hunter2@127.0.0.1:9"),
    ],
)
async def test_a_wrong_header_or_url_is_refused_without_its_secret(export, arguments) -> None:  # type: ignore[no-untyped-def]  # fixtures
    result = await export(*arguments)
    assert result.exit_code == 2, result.output
    assert "hunter2" not in result.output
    assert "expected" in result.output or "belong into a header" in result.output


async def test_a_page_of_groups_that_cannot_be_read_does_not_end_an_export(  # type: ignore[no-untyped-def]  # fixtures
    export, store, received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.commands.trace_export.GROUPS_AT_ONCE", 1)
    await whole_run(store)
    first = await store.database["tasks"].find_one(sort=[("settled_at", 1), ("_id", 1)])
    assert first is not None
    await store.database["tasks"].update_one({"_id": first["_id"]}, {"$set": {"payload": "spoilt"}})
    await store.database["records"].update_many({"task": first["_id"]}, {"$set": {"status": "spoilt"}})
    result = await export()
    assert (result.exit_code, "2 episodes, 10 spans" in result.output) == (0, True), result.output


async def test_a_receiver_that_asks_for_a_long_wait_is_left_with_a_sentence(export, store, received) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    later = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    for told in ("86400", later):
        received.answers = [(429, {"Retry-After": told})]
        result = await export()
        assert result.exit_code == 1
        assert re.search(r"takes no spans for 8\d{4} s \(HTTP 429: not now\); export again then", result.output), told
        assert received.requests == []
    received.answers = [(429, {"Retry-After": format_datetime(datetime.now(UTC), usegmt=True)})]
    assert (await export()).exit_code == 0


@pytest.mark.parametrize("created", [datetime(1960, 1, 1), datetime(2600, 1, 1)])
async def test_a_record_that_otlp_cannot_hold_is_left_out_and_named(export, store, received, created) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    await store.database["records"].update_one(
        {"_id": RECORD}, {"$set": {"created_at": created, "finished_at": created}}
    )
    result = await export()
    assert result.exit_code == 1
    assert f"record {RECORD} is left out: " in result.output
    assert "3 episodes, 15 spans in 1 requests" in result.output
    assert len(received.spans) == 15
    assert RECORD not in {attributes(span).get("tandem.record") for span in received.spans}


async def test_loopback_goes_direct_and_another_proxy_is_named(export, store, received, monkeypatch) -> None:  # type: ignore[no-untyped-def]  # fixtures
    await whole_run(store)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://ann:pa55@127.0.0.1:9/")
    assert (await export()).exit_code == 0
    exporter = Exporter("http://192.0.2.1:4318", {})
    exporter.stop()
    with pytest.raises(
        NotReceived, match=r"\(through the proxy http://127.0.0.1:9/ of http_proxy; no_proxy=192.0.2.1"
    ) as caught:
        exporter.send("r", spans_of("r", an_episode()))
    assert "pa55" not in str(caught.value)
    with pytest.raises(ConfigError, match="Connection refused") as refused:
        write_listed_tasks("agentrl://localhost:9/world", Path())
    assert "proxy" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"through the proxy http://127.0.0.1:9/"):
        write_listed_tasks("agentrl://192.0.2.1:9/world", Path())
