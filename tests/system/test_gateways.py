"""The real loop with agents that run elsewhere: gateways, the engine and agents are killed in the middle of streams."""

import asyncio
import contextlib
import itertools
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from shared.documents.states import DispatchStatus, RecordStatus
from shared.processes.mongod import free_port
from shared.store import Store
from tandem.audit.run import Check, audit
from tests.system.processes import Run, verify
from tests.system.test_loop import queue_tasks

STEPS = 40  # a fast machine must not have trained them before the last kill; two groups each
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Harness:
    """Plays tasks for as long as it is not stopped: two turns in a stream, each asked again at the next address if it is lost."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.stopped = asyncio.Event()
        self.finished: dict[str, float | None] = {}
        self._at = 0
        self._agents: list[asyncio.Task[None]] = []

    async def play_all(self, at_once: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                self._agents.append(group.create_task(self._play()))
            self._group = group

    def kill_agent(self) -> None:
        """It finishes nothing and gives nothing back; another takes its place."""
        self._agents.pop(0).cancel()
        self._agents.append(self._group.create_task(self._play()))

    async def _play(self) -> None:
        while not self.stopped.is_set():
            claimed = await self._post("/claim", {"wait_s": 1})
            if claimed.status_code != 200:
                continue
            offer = claimed.json()
            try:
                messages = list(offer["messages"])
                for _ in range(2):
                    messages.append({"role": "assistant", "content": await self._streamed(offer, messages)})
                    messages.append({"role": "user", "content": "Go on."})
                end: dict[str, Any] = {"score": len(messages[-2]["content"]) % 2}
            except openai.APIStatusError as exc:
                end = {"error": str(exc)}
            done = await self._post("/finish", end, offer["api_key"])
            if done.status_code == 200:
                self.finished[offer["record"]] = done.json()["score"]

    async def _streamed(self, offer: dict[str, Any], messages: list[Any]) -> str:
        """Each request after the first says that it is sent again, as an SDK's own retries do: a reply that was written when its
        gateway was killed is told again, and not sampled twice."""
        for count in itertools.count():
            self._at += 1
            url = self.urls[self._at % len(self.urls)]
            again = {"x-stainless-retry-count": str(count)}
            try:
                async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=offer["api_key"], max_retries=0) as client:
                    stream = await client.chat.completions.create(
                        model="main", messages=messages, stream=True, extra_headers=again
                    )
                    return "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])
            except openai.APIStatusError:
                raise
            except (openai.APIError, httpx.TransportError):  # the gateway is gone, or the stream ended with an error
                await asyncio.sleep(0.2)
        raise AssertionError("counting has no end")

    async def _post(self, path: str, body: dict[str, Any], key: str = "none") -> httpx.Response:
        while True:
            self._at += 1
            with contextlib.suppress(httpx.TransportError):
                async with httpx.AsyncClient(base_url=self.urls[self._at % len(self.urls)], timeout=120) as client:
                    return await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
            await asyncio.sleep(0.2)


@pytest.mark.thorough
async def test_gateways_the_engine_and_agents_are_killed_in_streams_and_no_reply_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    with Run(tmp_path, max_steps=STEPS) as run:
        ports = {f"gateway{k}": free_port() for k in range(2)}
        harness = Harness([f"http://127.0.0.1:{port}" for port in ports.values()])
        run.trainer_flags["drop_zero_advantage"] = "false"  # a step of equal rewards counts too
        await queue_tasks(run, first=2 * STEPS)
        run.start_trainer()
        run.start_keeper()
        for name, port in ports.items():
            run.start_gateway(name, port)
        playing = asyncio.create_task(harness.play_all(at_once=6))
        for name in ("gateway0", "gateway1", "agent", "keeper", "gateway0"):
            await run.until("requests that are sampled", some_running)
            if name == "agent":
                harness.kill_agent()
            else:
                run.end(name, signal.SIGKILL)
            if name == "keeper":
                run.start_keeper()  # its engine ended with it
            elif name in ports:
                run.start_gateway(name, ports[name])
            before = len(harness.finished)
            await run.until("episodes end", lambda store: more_than(harness, before))  # noqa: B023 - awaited at once
        assert await asyncio.to_thread(run.wait, "trainer") == 0, run.log("trainer")
        harness.stopped.set()
        await playing
        for name in ports:
            assert run.end(name) == 0, run.log(name)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            report = await audit(store)
            assert report.ok, report
            assert report.results[Check.COMPLETE].examined > 0
            trained = await store.data.find({"status": "trained"})
            assert {step for data in trained for step in data.trained_steps} == set(range(1, STEPS + 1))
            for name, score in harness.finished.items():
                record = await store.records.get(name)
                assert record is not None
                if score is None:  # the agent went on without a reply that its gateway had lost
                    assert record.status in (RecordStatus.FAILED, RecordStatus.ABANDONED)
                    continue
                answered = [d for d in (await store.records.dispatches_of([name]))[name] if d.response is not None]
                asked = [d.client.identity for d in answered if d.client is not None]
                assert len(asked) == len(set(asked)) == 2
        print(verify(run))  # the largest difference, for who asks with -s


async def some_running(store: Store) -> bool:
    running = {"status": DispatchStatus.RUNNING.value, "finished_at": None}
    return await store.database["dispatched_sampling_tasks"].count_documents(running) > 0


async def more_than(harness: Harness, count: int) -> bool:
    return len(harness.finished) > count
