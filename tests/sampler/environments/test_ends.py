"""What one world, one request and one page may not do to others: ends of worlds that exit, leave processes, or say too much."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest

from sampler.environments import sessions as sessions_module
from sampler.environments.sessions import Session, WorldRules, WorldSessions
from sampler.environments.worker_process import WorkerLost, WorkerProcess, WorldFailed
from tests.process_ends import assert_end
from tests.sampler.boxes import PATIENCE_S
from tests.sampler.environments.services import WORLDS, Service, is_alive, pids_of, service


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    with service("--workers", "1", worlds="Guess") as found:
        yield found


@pytest.mark.parametrize(
    ("said", "told"), [("exit", "SystemExit: the world exits"), ("long", "bytes of JSON; expected")]
)
def test_a_world_that_exits_or_says_too_much_takes_no_other_session(shared: Service, said: str, told: str) -> None:
    broken, _ = shared.start("guess", 1)
    other, _ = shared.start("guess", 2)
    answer = shared.say(broken, said)
    assert (answer.status_code, told in answer.text) == (500, True), answer.text
    assert shared.say(other, "2").json()["reward"] == 1.0
    assert "workers_lost" not in shared.health()["counts"]


# ---------------------------------------------------------------------- processes that worlds started


def _children(one: Service) -> tuple[dict[str, str], list[int]]:
    session, _ = one.start("guess", 1)
    said = [one.say(session, how).json()["messages"][0]["content"] for how in ("child here", "child apart")]
    return session, [int(pid) for pid in said]


def test_what_a_world_started_ends_with_the_killed_service() -> None:
    with service("--workers", "1", worlds="Guess") as one:
        _, children = _children(one)
        assert all(is_alive(pid) for pid in children)
        one.process.kill()
        one.process.wait()
        assert_end(children)


@pytest.mark.parametrize("how", ["hang", "die", "killed"])
def test_what_a_world_started_ends_with_its_worker(how: str) -> None:
    with service("--workers", "1", "--step_s", "2", worlds="Guess") as one:
        session, children = _children(one)
        if how == "killed":
            os.kill(pids_of(one.health())[0], signal.SIGKILL)
        else:
            assert one.say(session, how).status_code == 500
        assert_end(children)


# ---------------------------------------------------------------------- who may ask, and what


def test_without_a_token_only_this_machines_pages_and_clients_may_ask(shared: Service) -> None:
    body = {"name": "guess", "index": 1}
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example:5020"}):
        answer = shared.http.post("/start_sample", json=body, headers=headers)
        assert (answer.status_code, "expected a" in answer.text) == (403, True), headers
    local = {"origin": "http://localhost:8000", "host": "localhost"}
    assert shared.http.post("/start_sample", json=body, headers=local).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "session"),
    [
        ("/start_sample", {"name": ["s"]}, ""),
        ("/start_sample", {"name": {"s": 1}}, ""),
        ("/start_sample", {"name": "guess", "index": True}, ""),
        ("/interact", {"messages": []}, "9" * 5000),
        ("/interact", {"messages": []}, "²"),
        ("/cancel", {}, "²"),
    ],
)
def test_a_request_of_wrong_types_is_refused_with_a_sentence(
    shared: Service, path: str, body: object, session: str
) -> None:
    headers = httpx.Headers([(b"session_id", session.encode("latin-1"))])
    answer = shared.http.post(path, json=body, headers=headers)
    assert (answer.status_code, "expected" in answer.text or "this service has" in answer.text) == (422, True)


# ---------------------------------------------------------------------- inside


def rules(**changed: object) -> WorldRules:
    values = {"kinds": {"guess": f"{WORLDS}:Guess"}, "capacity": 4, "num_workers": 1, "max_starting": 4}
    times = {"wait_s": 5.0, "start_s": 30.0, "step_s": 30.0, "lease_s": 60.0}
    return WorldRules(**{**values, **times, **changed})  # type: ignore[arg-type]  # settings of several types


async def test_a_session_that_was_cancelled_during_its_step_ends_once() -> None:
    class Raising:
        def __init__(self) -> None:
            self.sessions = {7}

        def post(self, request: object) -> None: ...

        async def ask(self, request: object, timeout_s: float) -> None:
            assert worlds.cancel(7)
            raise WorldFailed("the world is broken")

    worlds = WorldSessions(rules())
    worlds._sessions[7] = Session(7, "guess", Raising(), time.monotonic() + 60)  # type: ignore[arg-type]  # of two methods
    with pytest.raises(WorldFailed, match="the world is broken"):
        await worlds.interact(7, [{"role": "assistant", "content": "1"}])
    assert worlds.counts == {"cancelled": 1}


async def test_a_worker_that_cannot_be_forked_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []
    started = WorkerProcess.started

    async def scarce(python: str, kinds: dict[str, str]) -> WorkerProcess:
        tries.append(python)
        if len(tries) < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await started(python, kinds)

    monkeypatch.setattr(sessions_module, "WorkerProcess", SimpleNamespace(started=scarce))
    monkeypatch.setattr(sessions_module, "RESTART_S", 0.01)
    worlds = WorldSessions(rules())
    keeping = asyncio.create_task(worlds.keep_workers())
    async with asyncio.timeout(PATIENCE_S):
        await worlds.ready()
    assert len(tries) == 3
    keeping.cancel()
    await asyncio.wait({keeping})


@pytest.mark.parametrize("line", ["5", "[]", '{"step": 1}', '{"n": []}', "[" * 100_000])
async def test_a_line_that_is_no_answer_ends_the_worker_and_nothing_else(line: str) -> None:
    worker = await WorkerProcess.started(sys.executable, {"guess": f"{WORLDS}:Guess"})
    assert worker._process.stdout is not None
    worker._process.stdout.feed_data(line.encode() + b"\n")
    async with asyncio.timeout(PATIENCE_S):
        await worker.ended()
    assert "answered something else than a line of JSON" in (worker.why_lost or "")
    with pytest.raises(WorkerLost):
        await worker.ask({"op": "indices", "kind": "guess"}, 1)
