"""A database with a password: a process with none or a wrong one reports it; the password appears nowhere else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest

from shared.errors import ConfigError, StoreRefused
from shared.processes.mongod import LIGHT, Mongod, find_mongod, free_port
from shared.store import Store
from tandem.launch.processes import MARK
from tests.system.processes import MODEL, PATIENCE_S, PATIENT, ROOT, launched

pytestmark = pytest.mark.timeout(900)

PASSWORD = "s3cr3tw0rd"
RUN = "guarded"


class Guarded:
    """A mongod with the users `ann`, who may do everything, and `bob`, who may do nothing."""

    def __init__(self, port: int) -> None:
        self.port = port

    def uri(self, user: str | None = None, password: str = PASSWORD) -> str:
        who = "" if user is None else f"{user}:{password}@"
        return f"mongodb://{who}127.0.0.1:{self.port}/?directConnection=true&authSource=admin"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with Mongod(folder, port=free_port()) as server, pymongo.MongoClient(server.connection_string) as client:
        client.admin.command("createUser", "ann", pwd=PASSWORD, roles=["root"])
        client.admin.command("createUser", "bob", pwd=PASSWORD, roles=[])
    command = [str(find_mongod()), "--dbpath", str(folder / "data"), "--port", str(server.port), "--auth", *LIGHT]
    with (folder / "guarded.log").open("wb") as log:
        process = subprocess.Popen([*command, "--bind_ip", "127.0.0.1"], stdout=log, stderr=log)
    try:
        found = Guarded(server.port)
        with pymongo.MongoClient(found.uri("ann"), serverSelectionTimeoutMS=60_000) as client:
            client.admin.command("ping")
        yield found
    finally:
        process.kill()
        process.wait()


CASES = {
    "no user": (None, PASSWORD, "requires authentication"),
    "wrong password": ("ann", "wr0ngw0rd", "Authentication failed"),
    "unknown user": ("eve", PASSWORD, "Authentication failed"),
    "no rights": ("bob", PASSWORD, "not authorized on guarded"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_refused_login_is_reported(guarded: Guarded, case: str) -> None:
    user, password, said = CASES[case]
    with pytest.raises(ConfigError) as caught:
        async with Store.open(guarded.uri(user, password), RUN):
            pass
    assert f"MongoDB at mongodb://127.0.0.1:{guarded.port}/" in str(caught.value)
    assert said in str(caught.value)
    assert "expected a db_connection_string with user, password and authSource" in str(caught.value)
    assert password not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", ["role", "user"])
async def test_a_login_revoked_during_a_run_gives_a_one_sentence_error(guarded: Guarded, change: str) -> None:
    run = f"withdrawn_{change}"
    with pymongo.MongoClient(guarded.uri("ann")) as admin:
        admin.admin.command("createUser", run, pwd=PASSWORD, roles=[{"role": "readWrite", "db": run}])
        async with Store.open(guarded.uri(run), run) as store:
            await store.runs.note_settings("sampler", "x")
            if change == "role":
                admin.admin.command("revokeRolesFromUser", run, roles=[{"role": "readWrite", "db": run}])
            else:
                admin.admin.command("dropUser", run)
            with pytest.raises(StoreRefused) as caught:
                await store.runs.note_settings("sampler", "x")
    assert str(caught.value).startswith("note_settings: refused: ")
    assert "expected a db_connection_string with user, password and authSource" in str(caught.value)
    assert len(str(caught.value)) < 400, "of the command, with its documents, only the beginning"
    assert PASSWORD not in str(caught.value)


SAMPLER = ("-m", "sampler", "--run", RUN, "--model_name_or_path", str(MODEL))
KEEPER = ("-m", "sampler.engine.keeper", "--run", RUN, "--model_name_or_path", str(MODEL))
TRAINER = ("-m", "trainer", "--run", RUN, "--model_name_or_path", str(MODEL), "--device", "cpu")
TANDEM = ("-m", "tandem", "status", RUN)


@pytest.mark.parametrize(
    ("command", "case"),
    [
        (SAMPLER, "wrong password"),
        (KEEPER, "no rights"),
        (TRAINER, "no user"),
        (TANDEM, "unknown user"),
    ],
)
def test_every_service_ends_with_one_sentence(
    guarded: Guarded, tmp_path: Path, command: tuple[str, ...], case: str
) -> None:
    user, password, said = CASES[case]
    more = ("--output_dir", str(tmp_path)) if command is TRAINER else ()
    done = subprocess.run(
        [sys.executable, *command, *more],
        cwd=ROOT,
        env=os.environ | {"DB_CONNECTION_STRING": guarded.uri(user, password)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    told = [line for line in (done.stdout + done.stderr).splitlines() if said in line]
    assert done.returncode in (1, 2), done.stderr
    assert len(told) == 1, done.stderr
    assert "expected a db_connection_string with user, password and authSource" in told[0]
    assert "Traceback" not in done.stdout + done.stderr
    assert password not in done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_a_password_is_in_no_argument_log_file_or_document_of_a_launched_run(guarded: Guarded, run: str) -> None:
    given = {"DB_CONNECTION_STRING": guarded.uri("ann"), "TANDEM_TRAINER_MAX_STEPS": "1"}
    levels = {f"TANDEM_{service}_LOG_LEVEL": "DEBUG" for service in ("SAMPLER", "KEEPER", "TRAINER")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tandem.launch", run, "--config", "assets/minirl.yml"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | PATIENT | levels | given,
    )
    arguments: dict[int, str] = {}
    environments: dict[str, bytes] = {}
    with pymongo.MongoClient(guarded.uri("ann")) as client:
        deadline = time.monotonic() + PATIENCE_S
        while set((client[run].runs.find_one() or {}).get("settings", {})) != {"sampler", "keeper", "trainer-main"}:
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[0]
            _look_at(run, arguments, environments)
            time.sleep(0.2)
        _look_at(run, arguments, environments)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
        database = client[run]
        documents = str([list(database[name].find()) for name in database.list_collection_names()])
        client.drop_database(run)
    assert {
        kind for kind in ("tandem.launch", "sampler", "sampler.engine.keeper", "trainer") if _started(arguments, kind)
    } == {"sampler", "sampler.engine.keeper", "trainer"}
    assert PASSWORD not in str(arguments)
    assert PASSWORD not in output
    assert PASSWORD not in documents
    files = [p for p in [*(ROOT / "logs").glob(f"{run}_*.log"), *(ROOT / "output" / run).rglob("*")] if p.is_file()]
    assert len(files) >= 4
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    # The tools run what a model asks for; an engine is a foreign program.
    assert environments["tools"]
    assert PASSWORD.encode() not in environments["tools"]
    assert PASSWORD.encode() not in environments["engine"]


def _look_at(run: str, arguments: dict[int, str], environments: dict[str, bytes]) -> None:
    for pid in launched(run):
        try:
            arguments[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # it has ended
        if f"{MARK}={run}-" in environment.decode(errors="replace"):
            kind = (
                "tools"
                if "tool_server.py" in arguments[pid]
                else "engine"
                if "engine.local" in arguments[pid]
                else "other"
            )
            environments[kind] = environment


def _started(arguments: dict[int, str], module: str) -> bool:
    return any(f"-m {module} " in line for line in arguments.values())
