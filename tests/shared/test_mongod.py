"""The embedded server: acknowledged writes persist, the address stays, a failed start gives the reason."""

import json
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pymongo
import pytest

from shared.errors import ConfigError
from shared.processes.mongod import Mongod, MongodFailed, find_mongod, free_port
from shared.store import Store
from tests.conftest import ROOT
from tests.shared.builders import import_tasks


async def test_after_a_kill_everything_acknowledged_is_there_under_the_same_address(tmp_path: Path) -> None:
    with Mongod(tmp_path) as first:
        address = first.connection_string
        async with Store.open(address, "kept") as store:
            await import_tasks(store, 50)
            assert first.process is not None
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(60)
    with Mongod(tmp_path) as second:
        assert second.connection_string == address
        async with Store.open(address, "kept") as store:
            assert await store.tasks.count_by_status() == {"train": {"created": 50}}


def test_stopping_twice_is_fine_and_leaves_no_process(tmp_path: Path) -> None:
    server = Mongod(tmp_path)
    server.stop()  # never started
    server.start()
    assert server.process is not None
    with pytest.raises(MongodFailed, match=rf"runs already \(pid {server.process.pid} on port {server.port}\)"):
        Mongod(tmp_path).start()
    assert json.loads((tmp_path / "mongod.json").read_text()) == {"port": server.port}, "commands still find it"
    server.stop()
    server.stop()
    assert server.process.poll() == 0


def test_a_port_taken_in_the_meantime_is_replaced(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "mongod.json").write_text(json.dumps({"port": port}))
        with Mongod(tmp_path) as server:
            assert server.port != port
            assert json.loads((tmp_path / "mongod.json").read_text()) == {"port": server.port}
            with pymongo.MongoClient(server.connection_string, serverSelectionTimeoutMS=60_000) as client:
                assert client.admin.command("ping")["ok"] == 1


def test_a_reserved_port_is_not_given_out_again_while_its_process_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also before it is bound: an engine takes seconds to start."""
    code = "from shared.processes.mongod import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        drawn = iter([port, *range(20_000, 30_000)])
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(drawn))
        assert free_port() != port
        other.kill()
        other.wait()
        drawn = iter([port])
        assert free_port() == port


def test_a_failed_start_shows_the_end_of_the_servers_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mongod"
    program.write_text("#!/bin/sh\necho no space left on device\nexit 14\n")
    program.chmod(0o755)
    monkeypatch.setenv("MONGOD", str(program))
    with pytest.raises(MongodFailed, match=r"ended with status 14:\n.*no space left on device"):
        Mongod(tmp_path / "db").start()


def test_a_server_that_never_answers_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mongod"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("MONGOD", str(program))
    server = Mongod(tmp_path / "db")
    with pytest.raises(MongodFailed, match=r"did not answer within 0\.5 s"):
        server.start(timeout_s=0.5)
    assert server.process is not None
    assert server.process.poll() is not None


def test_a_named_binary_that_is_not_executable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGOD", str(tmp_path))
    (tmp_path / "text").write_text("")
    monkeypatch.setenv("MONGOD", str(tmp_path / "text"))
    with pytest.raises(ConfigError, match="not an executable file"):
        find_mongod()


def test_a_running_server_is_known_by_any_spelling_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with Mongod(Path("server")) as server:
        assert server.process is not None
        for folder in (tmp_path / "server", Path("./server/../server"), Path("link/server")):
            with pytest.raises(MongodFailed, match=rf"runs already \(pid {server.process.pid} on port {server.port}\)"):
                Mongod(folder).start()


def test_a_failed_start_is_one_sentence_with_its_cause(tmp_path: Path) -> None:
    """A port that another server has taken used to count as started: that server had answered."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MongodFailed, match=f"port {port} is taken by another program; expected a free one"):
            Mongod(tmp_path / "a", port=port).start()
    with pytest.raises(
        MongodFailed, match=r"ended with status 48: Error setting up listener \(.*\); its log: "
    ) as caught:
        Mongod(tmp_path / "b", bind_ip="203.0.113.1").start()
    assert "\n" not in str(caught.value)
    Mongod(tmp_path / "c").start().stop()
    (tmp_path / "c/data/WiredTiger.wt").write_bytes(b"no table")
    with pytest.raises(MongodFailed, match=r"ended with status 14: (?!\*\*\*).{10}") as caught:
        Mongod(tmp_path / "c").start()
    assert "\n" not in str(caught.value)


def test_another_server_that_answers_at_its_port_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Mongod(tmp_path / "first") as first:
        monkeypatch.setattr("shared.processes.mongod._is_free", lambda port: True)  # it was, a moment ago
        with pytest.raises(MongodFailed, match="Address already in use"):
            Mongod(tmp_path / "second", port=first.port).start()
