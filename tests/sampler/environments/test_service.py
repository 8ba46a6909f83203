"""`python -m sampler.environments`: the wire, its bounds, its ends, and its workers' deaths, in real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.sampler.boxes import PATIENCE_S
from tests.sampler.environments.services import WORLDS, Service, is_alive, pids_of, service
from tests.sampler.running import until


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    with service("--workers", "2") as found:
        yield found


# ---------------------------------------------------------------------- the wire


def test_a_session_goes_from_its_start_over_wrong_answers_to_its_reward(shared: Service) -> None:
    session, step = shared.start("guess", 7)
    assert step["messages"] == [{"role": "user", "content": "A digit?"}]
    assert (step["status"], step["finish"], step["reward"]) == ("running", False, None)
    wrong = shared.say(session, "3").json()
    assert (wrong["messages"][0]["content"], wrong["reward"]) == ("not 3", -0.25)
    right = shared.say(session, "7").json()
    assert (right["status"], right["finish"], right["reward"]) == ("completed", True, 1.0)
    assert right["metrics"] == right["metric"] == {"tries": 1}
    late = shared.say(session, "7")
    assert (late.status_code, "ended: completed" in late.text) == (404, True)


def test_an_empty_message_renews_and_changes_nothing(shared: Service) -> None:
    session, _ = shared.start("guess", 7)
    shared.say(session, "3")
    assert shared.say(session, "").json()["messages"][0]["content"] == "not 3"
    assert shared.say(session, "7").json()["reward"] == 1.0


def test_a_custom_task_takes_its_index_as_agentrls_client_sends_it(shared: Service) -> None:
    body = {"name": "guess", "index": -1, "custom_task": {"index": 5}}
    answer = shared.http.post("/start_sample", json=body)
    assert shared.say({"session_id": answer.headers["session_id"]}, "5").json()["reward"] == 1.0


def test_a_cancelled_session_is_closed_in_its_worker(shared: Service, tmp_path: Path) -> None:
    session, _ = shared.start("guess", 1, folder=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    assert shared.http.post("/cancel", headers=session).json() == {"session_id": int(session["session_id"])}
    end = time.monotonic() + PATIENCE_S
    while list(tmp_path.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.01)  # another process removes them
    assert shared.http.post("/cancel", headers=session).status_code == 404
    assert "cancelled" in shared.say(session, "1").text


@pytest.mark.parametrize(
    ("path", "body", "headers", "told"),
    [
        ("/start_sample", {"name": "chess", "index": 0}, {}, "name is 'chess'; this service has: guess"),
        ("/start_sample", {"name": "guess", "index": -5}, {}, "index is -5; expected a number from 0 on"),
        ("/start_sample", {"name": "guess", "index": [1]}, {}, "index is [1]; expected a number or a text"),
        ("/start_sample", {"name": "guess", "custom_task": 3}, {}, "custom_task is 3; expected an object"),
        ("/start_sample", ["guess"], {}, "the body is not an object"),
        ("/interact", {"messages": []}, {}, "header session_id is ''"),
        ("/interact", {"messages": "hello"}, {"session_id": "1"}, "messages is missing; expected a list"),
    ],
)
def test_a_wrong_request_is_told_what_was_expected(
    shared: Service, path: str, body: object, headers: dict[str, str], told: str
) -> None:
    answer = shared.http.post(path, json=body, headers=headers)
    assert answer.status_code == 422
    assert told in answer.json()["detail"]


def test_it_lists_tasks_and_workers(shared: Service) -> None:
    assert shared.http.get("/get_indices", params={"name": "guess"}).json() == list(range(1000))
    listed = shared.http.get("/list_workers").json()
    assert sorted(listed) == ["called", "changing", "forgetful", "guess", "silent"]
    assert [one["capacity"] for one in listed["guess"]["workers"].values()] == [500, 500]


def test_a_world_that_raises_ends_its_session_and_no_other(shared: Service) -> None:
    session, _ = shared.start("guess", 1)
    other, _ = shared.start("guess", 2)
    broken = shared.say(session, "raise")
    assert (broken.status_code, "the world is broken" in broken.text) == (500, True)
    assert shared.say(session, "1").status_code == 404
    assert shared.say(other, "2").json()["reward"] == 1.0
    at_start = shared.http.post("/start_sample", json={"name": "guess", "index": 0, "custom_task": {"start": "raise"}})
    assert (at_start.status_code, "no disk" in at_start.text) == (500, True)


# ---------------------------------------------------------------------- bounds


def test_a_full_service_says_busy_and_has_room_again_after_an_end() -> None:
    with service("--workers", "1", "--capacity", "2", worlds="Guess") as full:
        first, _ = full.start("guess", 1)
        full.start("guess", 2)
        busy = full.http.post("/start_sample", json={"name": "guess", "index": 3})
        assert (busy.status_code, busy.headers["retry-after"]) == (406, "2")
        assert "all 2 sessions are in use" in busy.text
        full.say(first, "1")
        full.start("guess", 3)


def test_only_so_many_sessions_start_at_once_and_the_others_are_busy() -> None:
    with (
        service("--workers", "4", "--max_starting", "1", "--wait_s", "0.2", worlds="Guess") as slow,
        ThreadPoolExecutor(4) as pool,
    ):
        body = {"name": "guess", "index": 0, "custom_task": {"start_s": 3}}
        answers = list(pool.map(lambda _: slow.http.post("/start_sample", json=body), range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 406, 406, 406]
        assert any("1 sessions are starting at once" in answer.text for answer in answers)


async def test_a_session_that_nobody_renews_is_reaped_and_one_that_is_renewed_stays(tmp_path: Path) -> None:
    with service("--workers", "1", "--lease_s", "4", worlds="Guess") as leased:
        left, _ = leased.start("guess", 1, folder=str(tmp_path))
        kept, _ = leased.start("guess", 2)
        async with asyncio.timeout(PATIENCE_S):
            while leased.health()["counts"].get("reaped") != 1:
                assert leased.say(kept, "").status_code == 200
                await asyncio.sleep(0.2)
        assert "not renewed for 4 s" in leased.say(left, "1").text
        assert os.listdir(tmp_path) == []
        assert leased.say(kept, "2").json()["reward"] == 1.0


def test_a_body_beyond_the_bound_is_refused(shared: Service) -> None:
    answer = shared.http.post("/interact", content=b" " * (17 << 20), headers={"session_id": "1"})
    assert answer.status_code == 413


def test_a_token_is_asked_for() -> None:
    with service(worlds="Guess", TANDEM_ENVIRONMENTS_TOKEN="s3cret") as guarded:
        body = {"name": "guess", "index": 1}
        assert guarded.http.post("/start_sample", json=body).status_code == 401
        good = {"authorization": "Bearer s3cret"}
        assert guarded.http.post("/start_sample", json=body, headers=good).status_code == 200
        worker = pids_of(guarded.health())[0]
        assert b"s3cret" not in Path(f"/proc/{worker}/environ").read_bytes(), "worlds do not get the service's secrets"


# ---------------------------------------------------------------------- deaths and ends


async def test_sessions_of_a_killed_worker_are_lost_and_another_takes_its_place() -> None:
    with service("--workers", "1", worlds="Guess") as one:
        session, _ = one.start("guess", 1)
        (before,) = pids_of(one.health())
        os.kill(before, signal.SIGKILL)
        lost = await one.until(sessions=0)
        answer = one.say(session, "1")
        assert (answer.status_code, f"worker {before} has ended" in answer.text) == (404, True)
        pids = await until(one.workers, bool)
        assert (pids != [before], lost["counts"]["workers_lost"]) == (True, 1)
        again, _ = one.start("guess", 1)
        assert one.say(again, "1").json()["reward"] == 1.0


@pytest.mark.parametrize(("said", "told"), [("die", "has ended with status 3"), ("hang", "did not answer interact")])
async def test_a_worker_that_dies_or_hangs_in_a_step_is_an_error_in_time(said: str, told: str) -> None:
    with service("--workers", "1", "--step_s", "2", worlds="Guess") as one:
        session, _ = one.start("guess", 1)
        (before,) = pids_of(one.health())
        answer = one.say(session, said)
        assert (answer.status_code, told in answer.text) == (500, True)
        await one.until(sessions=0)
        assert not is_alive(before)


def test_a_client_that_leaves_during_the_start_leaves_no_session() -> None:
    with service("--workers", "1", worlds="Guess") as one:
        with pytest.raises(httpx.ReadTimeout):
            one.http.post("/start_sample", json={"name": "guess", "custom_task": {"start_s": 2}}, timeout=0.5)
        asyncio.run(one.until(starting=0))
        assert asyncio.run(one.until(sessions=0))["counts"]["cancelled"] == 1


def test_sigterm_lets_sessions_end_and_leaves_no_worker() -> None:
    with service("--workers", "2", worlds="Guess") as one:
        session, _ = one.start("guess", 1)
        workers = pids_of(one.health())
        one.process.send_signal(signal.SIGTERM)
        asyncio.run(one.until(draining=True))
        refused = one.http.post("/start_sample", json={"name": "guess", "index": 1})
        assert (refused.status_code, "the service ends" in refused.text) == (406, True)
        assert one.say(session, "1").json()["reward"] == 1.0, "an open session goes on"
        assert one.process.wait(PATIENCE_S) == 0
        assert not any(is_alive(pid) for pid in workers)


def test_a_killed_service_leaves_no_worker() -> None:
    with service("--workers", "2", worlds="Guess") as one:
        one.start("guess", 1)
        workers = pids_of(one.health())
        one.process.kill()
        one.process.wait()
        end = time.monotonic() + PATIENCE_S
        while any(is_alive(pid) for pid in workers):
            assert time.monotonic() < end
            time.sleep(0.02)  # they are no children of this process: nothing tells of their end


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--environments", "gymnasiun:FrozenLake-v1"], "cannot be loaded by"),
        (["--environments", f"{WORLDS}:Nothing"], "expected a subclass of sampler.environments.Environment"),
        (["--environments", f"{WORLDS}:Unfinished"], "lacks interact; sampler.environments.Environment says what"),
        (["--environments", "chess"], "expected ADAPTER:NAME, module:Class or NAME=ADAPTER:NAME"),
        (["--environments", f"{WORLDS}:Guess,{WORLDS}:Guess"], "is given twice"),
        (["--environments", f"{WORLDS}:Guess", "--host", "0.0.0.0"], "without a token"),
        (["--environments", f"{WORLDS}:Guess", "--worker_python", "/nowhere/python"], "which is no program"),
        (["--environments", f"{WORLDS}:Guess", "--run", "r"], "run is set without a connection string"),
    ],
)
def test_a_wrong_setting_ends_the_start_with_a_sentence(flags: list[str], told: str) -> None:
    command = [sys.executable, "-m", "sampler.environments", "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, told in ended.stderr) == (2, True), ended.stderr
    assert "Traceback" not in ended.stderr
