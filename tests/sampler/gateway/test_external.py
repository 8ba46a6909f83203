"""Agents that run elsewhere: they claim over HTTP, ask at any gateway process, and finish at any."""

import asyncio
import itertools
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from shared.documents.states import DispatchStatus, RecordStatus, SlotStatus
from shared.episodes.state import EpisodeState
from shared.store import Store
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks, waiting

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


@pytest.mark.parametrize("order", list(itertools.product("ab", repeat=3)))
async def test_any_process_goes_on_with_an_attempt_token_by_token(store: Store, order: tuple[str, ...]) -> None:
    await tasks(store)
    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        of = {"a": a, "b": b}
        offer = await a.claim()
        messages = list(offer["messages"])
        for name in order:
            await step(of[name].sdk(offer["api_key"]), messages)
        assert (await b.finish(offer["api_key"])).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert record.metrics == {"agent_first": 1, "agent_continued": 2}
    assert record.answer == "7"
    assert trained_ids(dispatches) == engine.exchanges
    assert [turn.kind.value for turn in EpisodeState(record, dispatches).turns] == ["root", "bridge", "bridge"]
    assert [[one.result for one in d.tool_calls] for d in dispatches] == [["3"], ["3"], []]
    assert all(d.finished_at is not None for d in dispatches)


async def test_a_reply_of_another_process_that_equals_an_earlier_one_is_not_taken_for_it(store: Store) -> None:
    """Without that reply, the messages that are new look like a repetition of the thread."""
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0])
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        for one in (a, a, b, a):
            await step(one.sdk(offer["api_key"]), messages)
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert record.metrics == {"agent_first": 1, "agent_continued": 3}
    assert trained_ids(dispatches) == engine.exchanges
    assert [turn.kind.value for turn in EpisodeState(record, dispatches).turns] == ["root", *["bridge"] * 3]


async def test_parallel_conversations_at_two_processes_lose_and_double_no_turn(store: Store) -> None:
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0], 0.02)
    async with gateway(store, engine, max_turns=30) as a, gateway(store, engine, max_turns=30) as b:
        offer = await a.claim()

        async def talk(name: str) -> None:
            messages = [{"role": "user", "content": f"I am {name}."}]
            for at in range(4):
                await step((a, b)[(at + int(name)) % 2].sdk(offer["api_key"]), messages)

        await asyncio.gather(*(talk(str(number)) for number in range(6)))
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert [d.turn for d in dispatches] == list(range(24))
    assert {d.status for d in dispatches} == {DispatchStatus.COMPLETED}
    ours = sorted(trained_ids(dispatches))
    assert ours == sorted(engine.exchanges)
    kinds = [turn.kind.value for turn in EpisodeState(record, dispatches).turns]
    assert kinds.count("bridge") == 18
    assert record.metrics["agent_continued"] == 18


async def test_requests_at_once_learn_together_what_another_process_did(store: Store) -> None:
    """The first finds its number taken; the next number is free, but the second must not use it without knowing the turn."""
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0])
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(b.sdk(offer["api_key"]), messages)
        await step(a.sdk(offer["api_key"]), messages)
        sdk = b.sdk(offer["api_key"])
        drafts = [[*messages, {"role": "user", "content": f"Draft {k}."}] for k in range(3)]
        await asyncio.gather(*(step(sdk, draft) for draft in drafts))
        await a.finish(offer["api_key"], score=1)
    record, dispatches = await documents(store, offer["record"])
    turns = EpisodeState(record, dispatches).turns
    assert all(turn.shared >= turns[1].length for turn in turns[2:])


async def test_a_client_that_leaves_uses_its_number_up(store: Store) -> None:
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as a, gateway(store, engine) as b:
        offer = await a.claim()
        async with waiting(step(a.sdk(offer["api_key"]), [{"role": "user", "content": "left"}]), slow):
            pass
        await slow.aborted.wait()
        await step(b.sdk(offer["api_key"]), list(offer["messages"]))
        assert (await b.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert [d.status.value for d in dispatches] == ["cancelled", "completed"]
    assert record.metrics == {"agent_cancelled": 1, "agent_first": 1}


async def test_a_request_is_sent_again_to_another_process_after_its_own_was_killed(store: Store) -> None:
    """The reply that the killed process had asked for never comes; the one sent again continues the conversation."""
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as killed, gateway(store, engine) as other:
        offer = await killed.claim()
        messages = list(offer["messages"])
        async with waiting(step(killed.sdk(offer["api_key"]), messages), slow):
            killed.is_killed()
            for _ in range(2):  # the first: the very request that waits there
                await step(other.sdk(offer["api_key"]), messages)
            done = (await other.finish(offer["api_key"], score=1)).json()
        assert done["status"] == "scored"
    _, dispatches = await documents(store, offer["record"])
    assert [d.status.value for d in dispatches] == ["failed", "completed", "completed"]
    assert trained_ids(dispatches) == engine.exchanges[:2]


async def test_an_agent_that_goes_on_without_a_lost_reply_gets_no_score(store: Store) -> None:
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as killed, gateway(store, engine) as other:
        offer = await killed.claim()
        async with waiting(step(killed.sdk(offer["api_key"]), [{"role": "user", "content": "lost"}]), slow):
            killed.is_killed()
            await step(other.sdk(offer["api_key"]), list(offer["messages"]))
            done = (await other.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["score"]) == ("failed", None)
        assert "never answered" in done["error"]
    task = await store.tasks.get((await documents(store, offer["record"]))[0].task)
    assert task is not None
    assert (task.slots[0].status, task.slots[0].failures) == (SlotStatus.OPEN, 1)


async def test_a_retry_of_a_request_whose_reply_got_lost_gets_that_reply(store: Store) -> None:
    """Written, and then the process ended before the client was told."""
    await tasks(store)
    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        offer = await a.claim()
        first = await step(a.sdk(offer["api_key"]), list(offer["messages"]))
        again = await step(
            b.sdk(offer["api_key"]), list(offer["messages"]), extra_headers={"x-stainless-retry-count": "1"}
        )
        assert (again.id, again.choices[0].message) == (first.id, first.choices[0].message)
        await b.finish(offer["api_key"], score=1)
    _, dispatches = await documents(store, offer["record"])
    assert len(dispatches) == len(engine.exchanges) == 1


async def test_a_failed_request_is_remembered_by_every_process(store: Store) -> None:
    await tasks(store)

    class Broken(ScriptedEngine):
        async def __call__(self, request: Any) -> Any:
            raise RuntimeError("no engine")

    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as a, gateway(store, Broken([]), engine_timeout_s=0.5) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(a.sdk(offer["api_key"]), messages)
        with pytest.raises(APIStatusError):
            await step(b.sdk(offer["api_key"]), [{"role": "user", "content": "fails"}])
        done = (await a.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["score"]) == ("failed", None)


@pytest.mark.parametrize(
    ("body", "status", "failures"), [({"error": "no disk"}, "failed", 1), ({"give_back": True}, "abandoned", 0)]
)
async def test_an_attempt_may_fail_or_be_given_back(
    store: Store, body: dict[str, Any], status: str, failures: int
) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS), retry_delay_s=0.01) as one:
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
    async with gateway(store, ScriptedEngine(CALLS), max_turns=1) as a, gateway(store, ScriptedEngine([])) as b:
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
        late = (await one.finish(offer["api_key"], score=1)).json()
        assert late["status"] == RecordStatus.ABANDONED.value
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
        for body in ({"wait_s": -1}, {"wait_s": 1e9}, {"wait": 1}, []):
            assert (await one.http.post("/claim", json=body, headers=given)).status_code == 400
        offer = (await one.http.post("/claim", headers=given)).json()
        for body in ({"score": 1, "answer": "x"}, {"score": "high"}, {"scores": 1}):
            answer = await one.finish(offer["api_key"], **body)
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
