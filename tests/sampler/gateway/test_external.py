"""Agents that run elsewhere: they claim over HTTP, ask at any gateway process, and finish at any."""

import asyncio
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from shared.documents import TaskPayload
from shared.documents.rules import RunRules
from shared.documents.states import RecordStatus, SlotStatus
from shared.rules.run_rules import Rules
from shared.store import Store
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks
from tests.sampler.running import until
from tests.shared.builders import make_task

CALLS = [call("add", a=1, b=2), call("add", a=3, b=4), "<answer>7</answer>"]


async def step(client: AsyncOpenAI, messages: list[Any], **options: Any) -> Any:
    """One request, and in `messages` what a common agent loop makes of it."""
    reply = await client.chat.completions.create(model="main", messages=messages, tools=[ADD], **options)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for one in message.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": one.id, "content": "3"})
    return reply


async def test_an_episode_is_claimed_played_and_finished_from_outside(store: Store) -> None:
    await tasks(store)
    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as one:
        offer = await one.claim()
        assert offer["base_url"] == f"{one.url}/v1"
        assert offer["query"] in offer["messages"][-1]["content"]
        messages = list(offer["messages"])
        for _ in CALLS:
            await step(one.sdk(offer["api_key"]), messages)
        done = (await one.finish(offer["api_key"], score=0.75)).json()
        assert (done["status"], done["score"], done["termination"]) == ("scored", 0.75, "answered")
        again = (await one.finish(offer["api_key"], score=0.1)).json()
        assert again["score"] == 0.75
        with pytest.raises(APIStatusError) as refused:
            await step(one.sdk(offer["api_key"]), messages)
        assert refused.value.status_code == 401
    record, dispatches = await documents(store, offer["record"])
    task = await store.tasks.get(record.task)
    assert task is not None
    assert [slot.status for slot in task.slots] == [SlotStatus.SCORED]
    assert record.metrics == {"agent_first": 1, "agent_continued": 2}
    assert trained_ids(dispatches) == engine.exchanges
    assert [[one.result for one in d.tool_calls] for d in dispatches] == [["3"], ["3"], []]
    assert offer["api_key"] not in str(record.model_dump()) + str([d.model_dump() for d in dispatches])


async def test_an_attempt_goes_by_the_rules_of_its_group_at_every_gateway_after_a_change(store: Store) -> None:
    await tasks(store, 2)
    engine = ScriptedEngine([*CALLS, *CALLS])
    async with gateway(store, engine, heartbeat_s=0.05) as one:
        first = await one.claim()
        messages = list(first["messages"])
        await step(one.sdk(first["api_key"]), messages)
        (rules,) = await store.rules.all("main")
        changed = Rules.model_validate(rules.values | {"temperature": 0.5})
        await store.rules.add(RunRules.of("main", 2, changed.sections(), "a person"))
        await until(lambda: asyncio.sleep(0.01, one.service._rules.number), lambda number: number == 2)
        await step(one.sdk(first["api_key"]), messages)
        async with gateway(store, engine) as another:
            await step(another.sdk(first["api_key"]), messages)
            second = await another.claim()
            await step(one.sdk(second["api_key"]), list(second["messages"]))
    temperatures = [
        [dispatch.sampling_params["temperature"] for dispatch in (await documents(store, offer["record"]))[1]]
        for offer in (first, second)
    ]
    assert temperatures == [[1.0] * 3, [0.5]]


async def test_a_turn_of_an_attempt_reads_no_request_that_this_process_wrote(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        messages = list(offer["messages"])
        await step(one.sdk(offer["api_key"]), messages)
        await store.database.command("profile", 2)  # the server lists each command that follows
        for _ in CALLS[1:]:
            await step(one.sdk(offer["api_key"]), messages)
        await store.database.command("profile", 0)
    listed = store.database["system.profile"]
    ours = {"ns": f"{store.database.name}.dispatched_sampling_tasks"}
    assert await listed.count_documents(ours | {"op": "update"}) >= 4, "requests and replies are written"
    assert await listed.count_documents(ours | {"op": {"$in": ["query", "getmore", "command"]}}) == 0


async def test_a_gateway_offers_what_names_no_sampler_or_external(store: Store) -> None:
    """A task of a sampler's is left to samplers, and one of a gateway's to gateways."""
    payloads = [TaskPayload(query="2+2?", answer="4", sampler=name) for name in ("mcp", "external", None, "external")]
    made = [make_task(seq, num_generations=1) for seq in range(4)]
    await store.tasks.insert_new([t.model_copy(update={"payload": p}) for t, p in zip(made, payloads, strict=True)])
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offered = [(await one.claim())["record"].split(":")[3] for _ in range(3)]
        assert offered == ["t1", "t2", "t3"]
        assert (await one.http.post("/claim", json={})).status_code == 503


async def test_an_attempt_without_tools_looks_for_no_tool_list(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(["<answer>7</answer>"])) as one:
        await store.database.command("profile", 2)
        offer = await one.claim()
        await one.sdk(offer["api_key"]).chat.completions.create(model="main", messages=offer["messages"])
        assert (await one.finish(offer["api_key"])).json()["status"] == "scored"
        await store.database.command("profile", 0)
    listed = store.database["system.profile"]
    found = set(await listed.distinct("ns"))
    assert f"{store.database.name}.records" in found
    assert f"{store.database.name}.tool_schemas" not in found


@pytest.mark.parametrize(
    ("body", "status", "failures"), [({"error": "no disk"}, "failed", 1), ({"give_back": True}, "abandoned", 0)]
)
async def test_an_attempt_may_fail_or_be_given_back(
    store: Store, body: dict[str, Any], status: str, failures: int
) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS), retry_delay_s=0.01, agent_crash="retry") as one:
        offer = await one.claim()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        assert (await one.finish(offer["api_key"], **body)).json()["status"] == status
        second = await one.claim(wait_s=20)
        assert second["api_key"] != offer["api_key"]
    task = await store.tasks.get((await documents(store, offer["record"]))[0].task)
    assert task is not None
    assert (task.slots[0].failures, task.slots[0].attempt) == (failures, 2)


async def test_an_agent_that_crashes_at_a_limit_of_the_episode_is_scored(store: Store) -> None:
    """As one in the sampler's process is, and whichever process met the limit."""
    await tasks(store)
    one_turn = {"max_turns": 1}
    async with (
        gateway(store, ScriptedEngine(CALLS), **one_turn) as a,
        gateway(store, ScriptedEngine([]), **one_turn) as b,
    ):
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(a.sdk(offer["api_key"]), messages)
        with pytest.raises(APIStatusError):
            await step(a.sdk(offer["api_key"]), messages)
        done = (await b.finish(offer["api_key"], error="PermissionDeniedError")).json()
        assert (done["status"], done["score"], done["termination"]) == ("scored", 0.0, "turns_limit")


async def test_an_attempt_without_requests_is_lost_and_its_key_with_it(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS), attempt_idle_s=0.5) as one:
        offer = await one.claim()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        await asyncio.sleep(0.6)
        second = await one.claim(wait_s=20)
        assert second["record"] != offer["record"]
        for answer in (
            await one.http.post("/heartbeat", headers={"authorization": f"Bearer {offer['api_key']}"}),
            await one.http.post("/score", json={"score": 1}, headers={"x-api-key": offer["api_key"]}),
        ):
            assert answer.status_code == 401, answer.text
        for _ in range(2):
            late = await one.finish(offer["api_key"], score=1)
            assert late.status_code == 401, late.text
            assert "another agent has its slot" in late.json()["error"]["message"]
        assert (await one.finish(second["api_key"], answer="7")).json()["status"] == "failed"  # it asked for nothing


async def test_a_posted_score_and_those_of_turns_are_known_to_every_process(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as a, gateway(store, ScriptedEngine(CALLS)) as b:
        offer = await a.claim()
        reply = await step(a.sdk(offer["api_key"]), list(offer["messages"]))
        key = {"x-api-key": offer["api_key"]}
        turn = reply.id.removeprefix("chatcmpl-")
        assert (await b.http.post("/score", json={"score": 0.25, "turn": turn}, headers=key)).status_code == 200
        assert (await a.http.post("/score", json={"score": 0.5}, headers=key)).status_code == 200
        assert (await b.finish(offer["api_key"])).json()["score"] == 0.5
    _, dispatches = await documents(store, offer["record"])
    assert [d.score for d in dispatches] == [0.25]


async def test_who_has_no_token_claims_nothing_and_bad_bodies_are_refused(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS), gateway_token="secret-token") as one:
        assert (await one.http.post("/claim", json={})).status_code == 401
        given = {"authorization": "Bearer secret-token"}
        for body in ({"wait_s": -1}, {"wait_s": 1e9}, {"wait_s": "1"}, {"wait_s": True}, {"wait": 1}, []):
            assert (await one.http.post("/claim", json=body, headers=given)).status_code == 400
        offer = (await one.http.post("/claim", headers=given)).json()
        for body in ({"score": 1, "answer": "x"}, {"score": "high"}, {"score": "1"}, {"score": True}, {"scores": 1}):
            answer = await one.finish(offer["api_key"], **body)
            assert answer.status_code == 400, answer.text
        feedback = {"record": offer["record"], "score": 1.0}
        for changed in (
            {"score": True},
            {"score": "1"},
            {"turn": True},
            {"turn": 0.0},
            {"comment": 1},
            {"record": "\0"},
        ):
            answer = await one.http.post("/v1/feedback", json=feedback | changed, headers=given)
            assert answer.status_code == 400, answer.text
        assert (await one.finish("sk-tandem-guessed", score=1)).status_code == 401
        busy = await one.http.post("/claim", headers=given)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "2")
        assert (await one.http.get("/health")).json()["status"] == "ok"


async def test_a_score_may_come_later_by_http(store: Store) -> None:
    await tasks(store)
    later = {"feedback_deadline_s": 3600, "feedback_missing": "abandon", "gateway_token": "secret-token"}
    given = {"authorization": "Bearer secret-token"}
    async with gateway(store, ScriptedEngine(CALLS), **later) as one:
        offer = (await one.http.post("/claim", headers=given)).json()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        done = (await one.finish(offer["api_key"])).json()
        assert (done["status"], done["score"]) == (RecordStatus.COMPLETED.value, None)
        feedback = {"record": offer["record"], "score": 0.5, "comment": "late, and good"}
        assert (await one.http.post("/v1/feedback", json=feedback)).status_code == 401
        for again in (False, True):
            answer = await one.http.post("/v1/feedback", json=feedback, headers=given)
            assert (answer.status_code, answer.json()["again"]) == (200, again)
        changed = await one.http.post("/v1/feedback", json=feedback | {"score": 1}, headers=given)
        assert (changed.status_code, changed.json()["error"]["code"]) == (409, "scored")
        unknown = await one.http.post("/v1/feedback", json=feedback | {"record": "no:such:0:1"}, headers=given)
        assert unknown.status_code == 409
        too_long = await one.http.post("/v1/feedback", json=feedback | {"comment": "x" * 1_000_000}, headers=given)
        assert too_long.status_code == 400
    record, _ = await documents(store, offer["record"])
    assert record.score == 0.5
    assert record.status in (RecordStatus.SCORED, RecordStatus.READY)  # the group may be settled already
