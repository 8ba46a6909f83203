"""Each service has a user of its own, who can do its work, and not that of the others."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pymongo
import pytest
from pymongo.errors import OperationFailure

from sampler.core.engines.client.engine_client import EngineClient
from shared.documents import Claim
from shared.documents.base import Document
from shared.errors import ConfigError
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.connecting import connect
from tandem.viewer.app import make_app
from tests.shared.builders import make_task
from tests.system.processes import MODEL, ROOT, TRAIN_FILE
from tests.system.secured import SecuredRun, login, prepare, preparing, secured_mongod, tandem
from tests.system.test_loop import copy_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UNAUTHORIZED, LOGIN_FAILED = 13, 18
RUN = "somerun"
NOTED_RUN = "notedrun"
DATA = [
    "tasks",
    "records",
    "dispatched_sampling_tasks",
    "record_data",
    "tool_schemas",
    "images",
    "image_chunks",
    "routed_experts",
]
# Commands on each collection: f(ind), i(nsert), u(pdate), d(elete). Written out, so that a wider role is seen here too.
ALLOWED = {
    "sampler": {
        **dict.fromkeys(DATA, "fiu"),
        **dict.fromkeys(["run_rules", "runs", "settings", "workers", "malformed_documents"], "fiu"),
        **dict.fromkeys(["policy_versions", "inference_services"], "f"),
        "environment_services": "fiud",
        **dict.fromkeys(["trained_steps", "trainer_logprobs", "leases", "notes", "saved_views"], ""),
    },
    "keeper": {
        **dict.fromkeys(["runs", "settings", "workers", "malformed_documents", "policy_versions", "leases"], "fiu"),
        "inference_services": "fiud",
        "tasks": "f",
        **dict.fromkeys(DATA[1:], ""),
        **dict.fromkeys(
            ["trained_steps", "trainer_logprobs", "environment_services", "run_rules", "notes", "saved_views"], ""
        ),
    },
    "trainer": {
        **dict.fromkeys(DATA, "fiu"),
        **dict.fromkeys(["runs", "settings", "workers", "malformed_documents"], "fiu"),
        **dict.fromkeys(["policy_versions", "trained_steps", "trainer_logprobs", "leases"], "fiu"),
        **dict.fromkeys(["inference_services", "run_rules"], "f"),
        **dict.fromkeys(["environment_services", "notes", "saved_views"], ""),
    },
}
COLLECTIONS = sorted(ALLOWED["sampler"])
ALLOWED["viewer"] = dict.fromkeys([*COLLECTIONS, "other"], "f") | dict.fromkeys(["notes", "saved_views"], "fiud")
ALLOWED["operator"] = dict.fromkeys(COLLECTIONS, "fiud")
COMMANDS: dict[str, dict[str, Any]] = {
    "f": {"find": "", "limit": 1},
    "i": {"insert": "", "documents": [{}]},
    "u": {"update": "", "updates": [{"q": {"_id": "none"}, "u": {"$set": {"x": 1}}}]},
    "d": {"delete": "", "deletes": [{"q": {"_id": "none"}, "limit": 1}]},
}
Server = tuple[Mongod, Path]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose preparation was killed before it ended, and begun again."""
    folder = tmp_path_factory.mktemp("users")
    with secured_mongod(folder / "mongodb") as mongod:
        for delay_s in (0.7, 1.0, 1.3, 1.6):
            with preparing(mongod, folder / "credentials") as process:
                time.sleep(delay_s)
                process.kill()
        done = prepare(mongod, folder / "credentials")
        assert done.returncode == 0, done.stderr
        yield mongod, folder / "credentials"


def is_allowed(database: Any, command: dict[str, Any]) -> bool:
    try:
        database.command(command)
    except OperationFailure as exc:
        if exc.code != UNAUTHORIZED:
            raise
        return False
    return True


def test_every_collection_of_the_store_is_in_the_roles() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "shared").rglob("*.py"))
    named = set(re.findall(r'database\["(\w+)"\]|^    collection: ClassVar\[str\] = "(\w+)"', sources, re.MULTILINE))
    assert {name for pair in named for name in pair if name} - {Document.collection} == set(COLLECTIONS)


@pytest.mark.parametrize("role", sorted(ALLOWED))
def test_a_user_may_send_exactly_the_commands_of_its_service(server: Server, role: str) -> None:
    with pymongo.MongoClient(login(server[1], role)) as client:
        for collection in [*COLLECTIONS, "other"]:
            found = ""
            for kind, command in COMMANDS.items():
                name = next(iter(command))
                found += kind if is_allowed(client[RUN], {**command, name: collection}) else ""
            assert found == ALLOWED[role].get(collection, ""), f"{role}: {collection}"


@pytest.mark.parametrize("role", sorted(ALLOWED))
@pytest.mark.parametrize(
    "command",
    [
        {"dropDatabase": 1},
        {"drop": "tasks"},
        {"renameCollection": f"{RUN}.tasks", "to": f"{RUN}.taken"},
        {"createUser": "eve", "pwd": "pw", "roles": ["root"]},
        {"grantRolesToUser": "viewer", "roles": ["root"]},
        {"find": "system.users"},
        {"find": "system.keys"},
        {"shutdown": 1},
        {"replSetStepDown": 1},
        {"getLog": "global"},
        {"setParameter": 1, "logLevel": 0},
        {"currentOp": 1, "$all": True},
    ],
    ids=lambda command: next(iter(command)),
)
def test_no_service_administers_the_server(server: Server, role: str, command: dict[str, Any]) -> None:
    on_server = next(iter(command)) not in ("dropDatabase", "drop")
    with pymongo.MongoClient(login(server[1], role)) as client:
        assert not is_allowed(client["admin" if on_server else RUN], command)


def test_without_a_login_nothing_is_read(server: Server) -> None:
    with pymongo.MongoClient(server[0].connection_string) as client:
        assert not is_allowed(client[RUN], {"find": "tasks"})
        assert not is_allowed(client.admin, {"createUser": "eve", "pwd": "pw", "roles": ["root"]})


def test_a_second_preparation_keeps_passwords_and_takes_back_rights_that_somebody_added(server: Server) -> None:
    mongod, credentials = server
    before = {path: path.read_text() for path in credentials.rglob("*") if path.is_file()}
    with pymongo.MongoClient(login(credentials, "root")) as client:
        added = {"resource": {"db": "", "collection": "policy_versions"}, "actions": ["remove"]}
        client.admin.command("grantPrivilegesToRole", "tandem-sampler", privileges=[added])
    assert prepare(mongod, credentials).returncode == 0
    assert {path: path.read_text() for path in credentials.rglob("*") if path.is_file()} == before
    assert all(path.stat().st_mode & 0o777 == 0o400 for path in before)
    with pymongo.MongoClient(login(credentials, "sampler")) as client:
        assert not is_allowed(client[RUN], {"delete": "policy_versions", "deletes": [{"q": {}, "limit": 1}]})


@pytest.mark.parametrize("killed", ["not at all", "before the server knew it", "before the folder knew it"])
def test_the_administrator_gets_a_new_password_also_after_a_kill(server: Server, killed: str) -> None:
    mongod, credentials = server
    before, sampler = login(credentials, "root"), login(credentials, "sampler")
    flags = ["--new_admin_password"]
    if killed != "not at all":  # what such a call leaves; then the usual preparation, of the next start say
        (credentials / "root" / "password.new").write_text(f"secret {killed}")
        flags = []
    if killed == "before the folder knew it":
        with pymongo.MongoClient(before) as client:
            client.admin.command("updateUser", "root", pwd=f"secret {killed}")
    done = prepare(mongod, credentials, *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (credentials / "root").iterdir()) == [
        "compass",
        "db_connection_string",
        "password",
    ]
    assert login(credentials, "root") != before
    for name in ("db_connection_string", "compass"):
        with pymongo.MongoClient((credentials / "root" / name).read_text()) as client:
            assert client.admin.command("usersInfo", "root")["users"]
    with pymongo.MongoClient(before) as client, pytest.raises(OperationFailure) as refused:
        client.admin.command("ping")
    assert refused.value.code == LOGIN_FAILED
    assert login(credentials, "sampler") == sampler
    assert prepare(mongod, credentials).returncode == 0


@pytest.fixture(scope="module")
def users_of_runs(server: Server) -> Path:
    """Users of the services for two runs each."""
    for run in (RUN, "otherrun"):
        done = prepare(server[0], server[1], "--run", run)
        assert done.returncode == 0, done.stderr
    return server[1]


def login_of_run(credentials: Path, role: str, run: str) -> str:
    return (credentials / role / "runs" / run / "db_connection_string").read_text()


@pytest.mark.parametrize("role", ["sampler", "keeper", "trainer"])
def test_a_services_user_of_a_run_opens_that_run_alone(users_of_runs: Path, role: str) -> None:
    with pymongo.MongoClient(login_of_run(users_of_runs, role, RUN)) as client:
        for collection in [*COLLECTIONS, "other"]:
            found = "".join(
                kind
                for kind, command in COMMANDS.items()
                if is_allowed(client[RUN], {**command, next(iter(command)): collection})
            )
            assert found == ALLOWED[role].get(collection, ""), f"{role}: {collection}"
        for database in ("otherrun", "third", "admin"):
            for collection in COLLECTIONS:
                for command in COMMANDS.values():
                    assert not is_allowed(client[database], {**command, next(iter(command)): collection})
                assert not is_allowed(client[database], {"createIndexes": collection, "indexes": []}), collection
        # The server lists those databases alone that the user may open, so that an error can name the runs there.
        assert set(client.list_database_names()) <= {RUN}


def test_the_passwords_of_two_runs_differ_and_a_leaked_one_does_not_open_the_others_user(users_of_runs: Path) -> None:
    texts = [login_of_run(users_of_runs, "sampler", run) for run in (RUN, "otherrun")]
    assert texts[0].startswith(f"mongodb://sampler-{RUN}:")
    with pymongo.MongoClient(texts[0].replace(f"sampler-{RUN}:", "sampler-otherrun:")) as client:
        with pytest.raises(OperationFailure) as refused:
            client.admin.command("ping")
        assert refused.value.code == LOGIN_FAILED
    for path in (users_of_runs / "sampler" / "runs").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o400), path


async def test_a_service_starts_with_the_user_of_its_run(users_of_runs: Path) -> None:
    login_string = login_of_run(users_of_runs, "sampler", "otherrun")
    async with Store.open(login_string, "otherrun") as store:
        assert (await store.runs.get()) is not None
    with pytest.raises(ConfigError, match="refused"):
        async with Store.open(login_string, "thirdrun"):
            pass


def test_a_folder_of_another_server_is_refused(server: Server, tmp_path: Path) -> None:
    refused = prepare(server[0], tmp_path / "credentials")
    assert refused.returncode == 2
    assert "has another password" in refused.stderr
    for path in (tmp_path / "credentials").rglob("password"):
        assert path.read_text() not in refused.stderr


def test_compass_reads_what_is_there_from_the_machine_of_the_server(server: Server) -> None:
    text = (server[1] / "viewer" / "compass").read_text()
    with pymongo.MongoClient(login(server[1], "operator")) as client:
        client["compassrun"].command({"insert": "runs", "documents": [{"_id": "run", "name": "compassrun"}]})
    with pymongo.MongoClient(text) as client:
        assert "compassrun" in client.list_database_names()
        assert client["compassrun"].list_collection_names() == ["runs"]
        assert [index["name"] for index in client["compassrun"]["runs"].list_indexes()] == ["_id_"]
        assert client["compassrun"].command("collStats", "runs")["count"] == 1
        assert client["compassrun"].command("dbStats")["objects"] == 1
        assert list(client["compassrun"]["runs"].aggregate([{"$indexStats": {}}]))
        assert client["compassrun"].command("explain", {"find": "runs"})["ok"] == 1
        assert list(client["compassrun"]["runs"].aggregate([{"$sample": {"size": 1}}]))


@pytest.mark.thorough
async def test_each_service_does_its_work_with_its_own_user(tmp_path: Path) -> None:
    with SecuredRun(tmp_path, max_steps=2) as run:
        tasks = str(copy_of(TRAIN_FILE, tmp_path, lines=12))
        queued = run.tandem("operator", "tasks", "import", run.name, tasks, "--num_generations", "4")
        assert queued.returncode == 0, queued.stderr
        run.start_all()
        assert run.wait("trainer") == 0, run.log("trainer")
        await assert_health_checks_tell_the_truth(run)
        for name in ("sampler0", "keeper"):
            assert run.end(name) == 0, run.log(name)
        ended = run.tandem("sampler", "health", run.name, "sampler")
        assert (ended.returncode, "no sampler on host" in ended.stderr) == (1, True)
        secrets = [path.read_text() for path in run.credentials.rglob("password")]
        assert not [log.name for log in run.logs() for secret in secrets if secret in log.read_text(errors="replace")]
        assert "not authorized" not in "".join(log.read_text(errors="replace") for log in run.logs())
        for command in (["status"], ["show"], ["eval"], ["trace", "--step", "1"], ["audit"]):
            told = run.tandem("viewer", command[0], run.name, *command[1:])
            assert told.returncode == 0, told.stdout + told.stderr
        refused = run.tandem("viewer", "pause", run.name)
        assert refused.returncode == 2
        assert "not authorized" in refused.stderr
        assert run.tandem("operator", "pause", run.name).returncode == 0


async def assert_health_checks_tell_the_truth(run: SecuredRun) -> None:
    """The engine is given other weights: its keeper does not notice, the check does."""
    assert run.tandem("sampler", "health", run.name, "sampler").returncode == 0
    assert run.tandem("sampler", "health", run.name, "sampler", "--host", "elsewhere").returncode == 1
    keeper = run.keeper_health()
    assert keeper.returncode == 0, keeper.stderr
    async with Store.open(login(run.credentials, "keeper"), run.name) as store, EngineClient() as client:
        service = (await store.services.all())[0]
        await client.pause(service.url)
        await client.update_weights_from_disk(service.url, str(MODEL), 77)
        await client.resume(service.url)
    keeper = run.keeper_health()
    assert (keeper.returncode, "answers with version 77; its keeper tells 2" in keeper.stderr) == (1, True), (
        keeper.stderr
    )


def test_a_secret_in_a_file_is_read_and_a_doubtful_one_is_refused(server: Server, tmp_path: Path) -> None:
    path = server[1] / "viewer" / "db_connection_string"
    assert "no run 'nothere'" in tandem("status", "nothere", DB_CONNECTION_STRING_FILE=str(path)).stderr
    empty = tmp_path / "empty"
    empty.touch()
    for wrong, said in ((empty, "which is empty"), (tmp_path / "none", "No such file")):
        told = tandem("status", "nothere", DB_CONNECTION_STRING_FILE=str(wrong))
        assert (told.returncode, said in told.stderr) == (2, True), told.stderr
    assert "DB_CONNECTION_STRING_FILE" not in os.environ


async def test_a_viewer_whose_user_may_not_write_notes_says_so(server: Server) -> None:
    """The user of `sampler` may read episodes and write no note."""
    _, credentials = server
    async with Store.open(login(credentials, "operator"), NOTED_RUN) as store:
        await store.records.start(Claim(task=make_task(0), traj_id=0, attempt=1), "w")
    for role, status in (("sampler", 403), ("viewer", 303)):
        database = connect(login(credentials, role), 10.0)
        transport = httpx.ASGITransport(app=make_app(database))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8800") as client:
            form = {"record": "main:train:0:t0:0:1", "text": "seen"}
            answer = await client.post(f"/runs/{NOTED_RUN}/notes", data=form)
        await database.close()
        assert answer.status_code == status, answer.text[-500:]
        assert ("tandem database prepare" in answer.text) == (status == 403)
