"""What our commands write with a secret, a conversation or an answer in it can be read by its user alone, also under umask 0.

The first test reads the source: a file or folder is created by the helpers of `shared/files`, or stands in the table with the
reason why others may read it. The other tests run what writes.
"""

import ast
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sampler.environments.adapters import mariadb_server
from sampler.gateway.workplace import plain_workplace
from shared.files.private_file import append_private, write_private
from shared.files.private_folder import make_private_folder
from shared.processes.mongod import Mongod
from shared.tasks.tables import Mapped, convert
from tandem.launch.children import Children, Program

ROOT = Path(__file__).parents[1]
WRITERS = {"write_text", "write_bytes", "mkdir", "makedirs", "copyfile", "copy", "copytree", "touch"}
OPENING = {"open", "fdopen"}
HELPERS = {"shared/files/written_file.py", "shared/files/private_file.py", "shared/files/private_folder.py"}
WEIGHTS = "weights, which engines of other users read"
FIGURES = "figures alone"
INSIDE = "inside a session's folder, which has mode 0700"
KERNEL = "a control group, which is the kernel's"
PUBLIC = {
    "shared/weights/deltas.py": WEIGHTS,
    "shared/weights/assembly.py": WEIGHTS,
    "trainer/checkpoints/checkpoint.py": WEIGHTS,
    "trainer/checkpoints/atomic_directories.py": WEIGHTS,
    "trainer/checkpoints/digests.py": "digests of weights, beside them",
    "trainer/publishing/adapter.py": WEIGHTS,
    "trainer/publishing/version_files.py": WEIGHTS,
    "trainer/publishing/weights.py": WEIGHTS,
    "trainer/quantize.py": WEIGHTS,
    "sampler/engine/keeper/cache.py": WEIGHTS,
    "trainer/reporting/metrics.py": FIGURES,
    "scripts/deploy_check/__main__.py": FIGURES,
    "scripts/gpu_check/__main__.py": FIGURES,
    "scripts/tandem/commands/database.py": "passwords, made with mode 0400",
    "scripts/deploy_check/agents.py": "a certificate, in a folder with mode 0700",
    "scripts/tandem/launch/lock.py": "the launcher's pid",
    "shared/processes/output.py": "/dev/null",
    "scripts/viewer_pictures.py": "the documentation's pictures, of the example",
    "scripts/make_example.py": "the bundled example",
    "shared/store/archive.py": "the file of `written_whole`",
    "scripts/tandem/commands/shown_images.py": "the file of `written_whole`",
    "shared/store/data_file.py": "the file of `written_whole`",
    "shared/tasks/tables.py": "the file of `written_whole`",
    "shared/tasks/table_images.py": "the file of `written_whole`",
    "sampler/gateway/kept_files.py": "made with the modes 0700 and 0600",
    "sampler/gateway/preload.py": "our own source, in a private folder",
    "sampler/mcp_docker/serving.py": "parents of the private state folder",
    "shared/sandbox/folders.py": "sessions' folders, made with mode 0700 in one that nobody can list",
    "shared/sandbox/users.py": "locks, made with the modes 0700 and 0600",
    "shared/sandbox/mounts.py": "empty mount points",
    "shared/sandbox/cgroups.py": KERNEL,
    "shared/sandbox/confinement.py": KERNEL,
    "sampler/mcp_docker/tools/beneath.py": INSIDE,
    "sampler/mcp_docker/tools/calls.py": "a pipe",
    "sampler/mcp_docker/tools/files.py": INSIDE,
    "sampler/mcp_docker/tools/sql.py": INSIDE,
    "shared/forks/processes.py": "a pipe",
    "sampler/environments/worker.py": "a pipe",
    "shared/images/worker.py": "a pipe",
    "shared/weights/pulling/chunked_file.py": WEIGHTS,
    "trainer/publishing/send.py": "a pipe",
    "sampler/environments/adapters/mariadb_server.py": "made with the modes 0700 and 0600",
    "sampler/environments/adapters/shell.py": "an archive in memory",
}


def creating(path: Path) -> list[int]:
    """Lines at which a file or a folder is, or may be, created."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _creates(node)
    ]


def _creates(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in WRITERS:
        return name != "copy" or ast.unparse(call.func).startswith("shutil.")
    words = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in ("mode", "flags"))]
    if name in OPENING:
        modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes if len(mode) <= 3) or any(
            "O_CREAT" in ast.unparse(word) for word in words
        )
    return False


def test_what_creates_files_uses_the_private_helpers_or_says_why_others_may_read_them() -> None:
    sources = [path for top in ("shared", "sampler", "trainer", "scripts") for path in (ROOT / top).rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sources
        if "scripts/bench" not in path.as_posix() and (lines := creating(path))
    }
    unexplained = {name: lines for name, lines in found.items() if name not in HELPERS | PUBLIC.keys()}
    assert not unexplained, f"use shared/files/private_file.py, or say in PUBLIC why others may read it: {unexplained}"
    assert PUBLIC.keys() <= found.keys(), "rows of files that create nothing"


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of what others can reach: nothing below a folder that they cannot enter."""
    found = {}
    for path in folder.iterdir():
        mode = stat.S_IMODE(path.lstat().st_mode)
        found[path.name] = mode
        if path.is_dir() and mode & 0o077:
            found |= {f"{path.name}/{name}": inner for name, inner in modes(path).items()}
    return found


@pytest.mark.usefixtures("no_umask")
def test_the_helpers_create_what_nobody_else_can_read(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    write_private(tmp_path / "text", "secret")
    append_private(tmp_path / "log").close()
    assert modes(tmp_path) == {"a": 0o755, "a/b": 0o700, "text": 0o600, "log": 0o600}
    (tmp_path / "link").symlink_to(tmp_path / "text")
    with pytest.raises(OSError, match="link"):
        write_private(tmp_path / "link", "elsewhere")


@pytest.mark.usefixtures("no_umask")
def test_the_embedded_database_and_a_services_log_are_private(tmp_path: Path) -> None:
    with Mongod(tmp_path / "mongodb") as server:
        assert server.process is not None
    with Children("somerun", ROOT) as children:
        log = tmp_path / "logs" / "somerun_sample_1.log"
        child = children.start(
            Program("sampler 1", "sampler", [sys.executable, "-c", "print('a conversation')"], log, ends_itself=True)
        )
        assert child.process.wait(60) == 0
    assert log.read_text() == "a conversation\n"
    assert modes(tmp_path) == {"mongodb": 0o700, "logs": 0o700}
    assert modes(tmp_path / "logs") == {log.name: 0o600}
    assert modes(tmp_path / "mongodb")["mongod.log"] == 0o600


@pytest.mark.usefixtures("no_umask")
async def test_an_agents_kept_folder_is_private(tmp_path: Path) -> None:
    async with plain_workplace(tmp_path / "outputs" / "episode", None, "off") as place:
        assert place.folder.is_dir()
    assert modes(tmp_path) == {"outputs": 0o755, "outputs/episode": 0o700}


@pytest.mark.usefixtures("no_umask")
def test_a_converted_task_file_has_its_answers_for_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("question,answer\nWhat is 1+1?,2\n")
    (tmp_path / "table.csv").chmod(0o600)
    assert convert(str(tmp_path / "table.csv"), tmp_path / "tasks.jsonl", Mapped()).tasks == 1
    assert modes(tmp_path) == {"table.csv": 0o600, "tasks.jsonl": 0o600}


@pytest.mark.usefixtures("no_umask")
def test_the_first_statement_of_mariadb_has_its_password_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`false` in the server's place: what was written before is there."""
    monkeypatch.setattr(mariadb_server, "_SQL", ())
    with pytest.raises(RuntimeError, match="bootstrap failed"):
        mariadb_server._started("/bin/false", tmp_path, tmp_path, "a password")
    assert modes(tmp_path) == {"data": 0o700, "first.sql": 0o600, "log": 0o600}


@pytest.mark.parametrize("fails", [False, True])
def test_a_backup_is_for_its_user_alone_from_its_first_byte(tmp_path: Path, fails: bool) -> None:
    """An engine's client that writes the tar, and looks at the file while it does so."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        "#!/bin/sh\n"
        f"[ $1 = run ] || exit 0; printf 'a password'; stat -c %a '{tmp_path}/backup.tar.part' > '{tmp_path}/while'\n"
        f"exit {3 if fails else 0}\n"
    )
    docker.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", "umask 0; exec deploy/backup.sh save " + str(tmp_path / "backup.tar")],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{docker.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode == 0) is not fails, done.stderr
    assert (tmp_path / "while").read_text() == "600\n"
    assert [path.name for path in tmp_path.glob("backup*")] == ([] if fails else ["backup.tar"])
    if not fails:
        assert modes(tmp_path)["backup.tar"] == 0o600
