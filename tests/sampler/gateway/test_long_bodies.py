"""A body that has no place in the context is refused without reading it; a long one is read while others are served."""

import json
import threading
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from sampler.gateway import app
from sampler.gateway.bodies import BYTES_PER_TOKEN, LEAST_BODY_BYTES, MAX_BODY_BYTES, most_body_bytes, plain_json
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.gateway.gateways import documents, gateway, tasks

MOST = 32_768  # max_tokens
CHAT = "/v1/chat/completions"
PATHS = (CHAT, "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/models/main:generateContent")
PATIENCE_S = 120.0


def chat(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "main", "messages": messages}).encode()


async def posted(http: httpx.AsyncClient, offer: Mapping[str, Any], body: bytes, path: str = CHAT) -> httpx.Response:
    return await http.post(path, content=body, headers={"x-api-key": offer["api_key"]}, timeout=PATIENCE_S)


def test_the_bound_of_a_body_follows_from_the_context() -> None:
    assert most_body_bytes(10) == LEAST_BODY_BYTES
    assert most_body_bytes(MOST) == MOST * BYTES_PER_TOKEN < MAX_BODY_BYTES
    assert most_body_bytes(1 << 20) == MAX_BODY_BYTES


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_has_no_place_in_the_context_is_refused_unread(
    store: Store, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(["<answer>4</answer>"]), max_tokens=MOST) as one:
        offer = await one.claim()
        with monkeypatch.context() as patched:
            patched.setattr(app, "plain_json", lambda _: pytest.fail("it is read"))
            answer = await posted(one.http, offer, chat([{"role": "user", "content": "x" * 5_000_000}]), path)
        assert answer.status_code == 413, answer.text
        assert "expected at most 4,194,304" in answer.text
        ended = (await one.finish(offer["api_key"])).json()
    assert ended["termination"] == Termination.LENGTH_LIMIT, ended


async def test_an_agent_whose_body_was_too_large_may_go_on(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(["<answer>4</answer>"]), max_tokens=MOST) as one:
        offer = await one.claim()
        refused = await posted(one.http, offer, chat([{"role": "user", "content": "x" * 5_000_000}]))
        answered = await posted(one.http, offer, chat(list(offer["messages"])))
        assert (refused.status_code, answered.status_code) == (413, 200)
        assert (await one.finish(offer["api_key"])).json()["status"] == RecordStatus.SCORED
    record, dispatches = await documents(store, offer["record"])
    assert (record.termination, len(dispatches)) == (Termination.ANSWERED, 1)


async def test_others_are_served_while_many_messages_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes a second, in a thread: on the event loop, it would stand still for most of it."""
    await tasks(store)
    threads = []

    def recorded(raw: bytes, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return plain_json(raw, **options)

    async with gateway(store, ScriptedEngine([]), max_tokens=MOST) as one:
        offer, body = await one.claim(), chat([{"role": "user", "content": "hi"}] * 100_000)
        monkeypatch.setattr(app, "plain_json", recorded)
        answer = await posted(one.http, offer, body)
    assert (answer.status_code, "100,000 messages; expected at most 32,768" in answer.text) == (413, True), answer.text
    assert threads
    assert threading.main_thread() not in threads
