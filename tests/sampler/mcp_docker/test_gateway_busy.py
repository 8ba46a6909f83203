"""A gateway at its bounds: new sessions and requests are refused as busy, and samplers wait without blaming their slots."""

import asyncio
import random
from pathlib import Path

import pytest

from sampler.core.tools import ToolLimits, ToolSession, Traffic
from shared.store import Store
from tests.sampler.mcp_docker.gateways import PATIENCE_S, RawClient, gateway
from tests.sampler.running import running_sampler
from tests.shared.builders import import_tasks

pytestmark = pytest.mark.slow
HOURS = 3600.0


@pytest.mark.thorough
async def test_episodes_of_a_sampler_wait_for_a_full_gateway_and_no_slot_is_blamed(
    store: Store, tmp_path: Path
) -> None:
    await import_tasks(store, 2, num_generations=3)
    flags = ("--max_sessions", "2", "--warm_sessions", "2")
    with gateway(tmp_path, None, *flags) as full:
        options = {"mcp_manager_url": f"{full.url}/mcp", "tool_open_s": PATIENCE_S, "max_failures": 1}
        async with running_sampler(store, **options, poll_s=0.02, heartbeat_s=0.05):
            async with asyncio.timeout(4 * PATIENCE_S):  # one after another: each ends its processes first
                while (await store.tasks.count_slots()).get("scored") != 6:  # noqa: ASYNC110 - a database has no event
                    await asyncio.sleep(0.1)
        found = await full.until(sessions=0, ending=0)
        assert found["refused_as_busy"] > 0
        assert await store.database["tasks"].count_documents({"failures": {"$gt": 0}}) == 0
        assert await store.database["records"].count_documents({"status": "failed"}) == 0
        assert "reason=silence" not in full.log.read_text()


async def test_a_session_above_the_capacity_is_told_when_to_ask_again(tmp_path: Path) -> None:
    with gateway(tmp_path, None, "--max_sessions", "1", "--warm_sessions", "0") as full:
        first, second = RawClient(full), RawClient(full)
        assert (await first.open()).status_code == 200
        refused = await second.open()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert "1 sessions are open and 0 are ending" in refused.json()["error"]["message"]
        assert (await first.http.get("/health")).status_code == 200, "a full gateway is healthy"
        traffic = Traffic(patience_s=HOURS)
        waiting = ToolSession([full.server], limits=ToolLimits(open_s=PATIENCE_S), traffic=traffic)
        opening = asyncio.create_task(waiting.open())
        await full.until(refused_as_busy=2)
        await first.close()
        async with asyncio.timeout(PATIENCE_S):
            await opening
        assert (await waiting.call("echo", {"text": "now"})).text == "now"
        await waiting.close()
        await second.http.aclose()


async def test_one_session_cannot_send_more_than_its_share(tmp_path: Path) -> None:
    flags = ("--max_parallel_calls", "2", "--max_calls_per_s", "1", "--warm_sessions", "0", "--max_message_mb", "1")
    with gateway(tmp_path, None, *flags) as started:
        client = RawClient(started)
        await client.open()
        slow = [asyncio.create_task(client.call("slow", number, seconds=20)) for number in (1, 2)]
        await started.until_in_flight(2)
        refused = await client.post({"jsonrpc": "2.0", "id": 3, "method": "ping"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "2 requests of this session are in flight" in refused.text
        twice = await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert twice.status_code in (400, 429)
        for call in slow:
            call.cancel()
        await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        await started.until_in_flight(0)
        pings = [await client.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})]
        while pings[-1].status_code == 200 and len(pings) < 1000:  # a slow machine has time for more of them
            pings.append(await client.post({"jsonrpc": "2.0", "id": 9 + len(pings), "method": "ping"}))
        assert len(pings) > 1
        assert pings[-1].status_code == 429
        assert "too many requests per second" in pings[-1].text
        large = await client.http.post("/mcp", content=b"x" * (1024 * 1024 + 1), headers=client.headers)
        assert large.status_code == 413
        await client.close()


async def test_random_bytes_are_refused_and_the_gateway_goes_on(tmp_path: Path) -> None:
    draw = random.Random(13)
    whole = (
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}'
    )
    with gateway(tmp_path) as started:
        client = RawClient(started)
        await client.open()
        for _ in range(300):
            body = bytearray(whole)
            for _ in range(draw.randrange(1, 6)):
                body[draw.randrange(len(body))] = draw.randrange(256)
            response = await client.http.post(
                "/mcp", content=bytes(body[: draw.randrange(1, len(body) + 1)]), headers=client.headers
            )
            assert response.status_code in (200, 202, 400), (bytes(body), response.text)
        for body in (
            b"[" * 100_000,
            b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
            b"",
            b"null",
            b"[]",
        ):
            assert (await client.http.post("/mcp", content=body, headers=client.headers)).status_code == 400
        reader, writer = await asyncio.open_connection("127.0.0.1", started.port)
        writer.write(bytes(draw.randrange(256) for _ in range(5000)) + b"\r\n\r\n")
        await reader.read(1000)
        writer.close()
        assert (await client.call("echo", 999, text="still here"))["result"]["content"][0]["text"] == "still here"
        await client.close()
        assert "Traceback" not in started.log.read_text()
