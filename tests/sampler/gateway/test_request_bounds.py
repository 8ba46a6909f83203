"""Bounds of one attempt's requests, and the ends that they respect."""

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from sampler.core.episode.episode import play
from sampler.gateway import relay, session
from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, an_episode, played
from tests.sampler.gateway.gateways import documents, gateway, tasks

PATIENCE_S = 120.0
PATH = "/v1/chat/completions"


def http_of(task: AgentTask) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=task.url, headers={"x-api-key": task.api_key}, timeout=PATIENCE_S)


def numbered(count: int) -> list[str]:
    return [f"<answer>{number}</answer>" for number in range(count)]


async def reply(http: httpx.AsyncClient, task: AgentTask, key: str, *said: str) -> str:
    """The text of the reply to a conversation that ends with what was `said`."""
    messages = [*task.messages, *({"role": "user", "content": text} for text in said)]
    answer = await http.post(PATH, json={"model": task.model, "messages": messages}, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_another_body_with_the_same_idempotency_key_is_another_request(store: Store) -> None:
    texts = []

    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            for said in ([], ["and?"], []):
                texts.append(await reply(http, task, "same", *said))

    await played(store, ScriptedEngine(numbered(3)), agent)
    assert texts == [f"<answer>{number}</answer>" for number in (0, 1, 0)]


async def test_replies_are_kept_for_so_many_repeated_requests_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_REPLAYED", 2)
    texts = []

    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            for key in ("a", "b", "c", "c", "b", "a"):
                texts.append(await reply(http, task, key, key))

    await played(store, ScriptedEngine(numbered(4)), agent)
    assert texts == [f"<answer>{number}</answer>" for number in (0, 1, 2, 2, 1, 3)]


async def test_so_many_requests_of_an_attempt_run_at_once_and_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_AT_ONCE", 3)
    engine = ScriptedEngine(numbered(20), delay_s=3600)
    refused = []

    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            running = [asyncio.create_task(reply(http, task, str(number), str(number))) for number in range(3)]
            async with asyncio.timeout(PATIENCE_S):
                while len(engine.exchanges) < 3:  # noqa: ASYNC110 - requests of its own
                    await asyncio.sleep(0.01)
            engine._delay_s = 0.0
            refused.append(await http.post(PATH, json={"model": task.model, "messages": task.messages}))
            for request in running:
                request.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    await played(store, engine, agent)
    assert [answer.status_code for answer in refused] == [429]
    assert "3 requests of this attempt are running" in refused[0].text
    assert len(engine.exchanges) == 3


def half_a_score(url: str, key: str, body: bytes) -> socket.socket:
    """A connection with a request that lacks its last byte."""
    at = urlsplit(url)
    assert at.port is not None
    head = f"POST /score HTTP/1.1\r\nHost: here\r\nX-Api-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection((at.hostname, at.port), timeout=PATIENCE_S)
    connection.sendall(head.encode() + body[:-1])
    return connection


async def test_a_score_whose_body_ends_after_the_attempt_is_refused(store: Store) -> None:
    """Its session was found before the end."""
    body = json.dumps({"score": 0.25}).encode()
    connections: list[socket.socket] = []

    async def agent(task: AgentTask) -> None:
        async with http_of(task) as http:
            await reply(http, task, "a")
            connections.append(await asyncio.to_thread(half_a_score, task.url, task.api_key, body))
            await asyncio.sleep(0.5)  # its head is read

    async with an_episode(store, ScriptedEngine(["<answer>4</answer>"]), agent) as sampler:
        await play(sampler)
        with contextlib.closing(connections[0]) as connection:
            connection.sendall(body[-1:])
            answer = await asyncio.to_thread(connection.recv, 10_000)
    assert answer.startswith(b"HTTP/1.1 401 "), answer
    record = await store.records.get(sampler.claim.record_id)
    assert record is not None
    assert (record.status, record.score) == (RecordStatus.SCORED, 1.0)


async def test_a_score_after_the_end_of_an_attempt_from_outside_is_refused(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(["<answer>4</answer>"])) as one, gateway(store, ScriptedEngine([])) as two:
        offer = await one.claim()
        key = {"x-api-key": offer["api_key"]}
        asked = {"model": offer["model"], "messages": list(offer["messages"])}
        turn = (await one.http.post(PATH, json=asked, headers=key)).json()["id"]
        assert (await one.finish(offer["api_key"], score=0.5)).json()["score"] == 0.5
        for process in (one, two):
            for body in ({"score": 0.25}, {"score": 0.25, "turn": turn.removeprefix("chatcmpl-")}):
                late = await process.http.post("/score", json=body, headers=key)
                assert late.status_code == 401, late.text
    record, dispatches = await documents(store, offer["record"])
    assert (record.score, dispatches[0].score) == (0.5, None)


async def test_a_score_after_an_attempt_was_finished_at_another_gateway_is_refused(store: Store) -> None:
    """The process has renewed the lease just now, and so does not do so again."""
    await tasks(store)
    async with gateway(store, ScriptedEngine(["<answer>4</answer>"])) as one, gateway(store, ScriptedEngine([])) as two:
        offer = await one.claim()
        key = {"x-api-key": offer["api_key"]}
        asked = {"model": offer["model"], "messages": list(offer["messages"])}
        turn = (await one.http.post(PATH, json=asked, headers=key)).json()["id"]
        bodies = [{"score": 0.25}, {"score": 0.25, "turn": turn.removeprefix("chatcmpl-")}]
        for body in bodies:
            assert (await two.http.post("/score", json=body, headers=key)).status_code == 200
        assert (await one.finish(offer["api_key"], score=0.5)).json()["score"] == 0.5
        late = [await two.http.post("/score", json=body, headers=key) for body in bodies]
        assert [answer.status_code for answer in late] == [401, 401], late[0].text + late[1].text


async def test_a_relay_has_so_many_connections_and_closes_those_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MAX_CONNECTIONS", 4)
    reached: list[Any] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(writer)
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(PATIENCE_S), relay.relayed(str(tmp_path), "127.0.0.1", port, (os.getuid(), os.getgid())):
        clients = []
        for number in range(6):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / relay.NAME))
            clients.append((reader, writer))
            if number < 4:
                writer.write(b"hello\n")
                assert await reader.readline() == b"hello\n"
            else:
                assert await reader.read() == b""
        assert len(reached) == 4
        clients[0][1].close()
        while len(reached) < 5:  # a place is free again
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / relay.NAME))
            clients.append((reader, writer))
            with contextlib.suppress(ConnectionError):
                writer.write(b"hello\n")
                await reader.readline()
        for _, writer in clients:
            writer.close()
    server.close()
