"""A mongod with a password, prepared by `tandem database prepare`, and a run whose services log in by files of their own."""

import base64
import os
import subprocess
import sys
from pathlib import Path

from shared.processes.mongod import Mongod, free_port
from tests.system.processes import MODEL, ROOT, Run

REPLICA_SET = "rs0"


def secured_mongod(folder: Path) -> Mongod:
    folder.mkdir(parents=True)
    key = folder / "keyfile"
    key.write_bytes(base64.b64encode(os.urandom(96)))
    key.chmod(0o400)
    return Mongod(folder, port=free_port(), options=("--replSet", REPLICA_SET, "--keyFile", str(key)))


def tandem(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tandem", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def prepare(server: Mongod, folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    return tandem(*_preparation(server, folder), *flags)


def preparing(server: Mongod, folder: Path) -> "subprocess.Popen[bytes]":
    """The same, to be killed."""
    command = [sys.executable, "-m", "tandem", *_preparation(server, folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def _preparation(server: Mongod, folder: Path) -> list[str]:
    where = ["--folder", str(folder), "--member", f"127.0.0.1:{server.port}", "--port", str(server.port)]
    return ["database", "prepare", *where, "--outside_port", str(server.port)]


def login(folder: Path, role: str) -> str:
    return (folder / role / "db_connection_string").read_text()


class SecuredRun(Run):
    """Every part is given the name of the file with its role's connection string, and nothing else."""

    def __init__(self, folder: Path, **settings: int) -> None:
        super().__init__(folder, **settings)
        self.mongod = secured_mongod(folder / "mongodb")
        self.credentials = folder / "credentials"

    def __enter__(self) -> "SecuredRun":
        super().__enter__()
        prepared = prepare(self.mongod, self.credentials)
        assert prepared.returncode == 0, prepared.stderr
        return self

    def tandem(self, role: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return tandem(*arguments, DB_CONNECTION_STRING_FILE=str(self.file_of(role)))

    def keeper_health(self) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "sampler.engine.keeper.health", *self._common()],
            cwd=ROOT,
            env={**os.environ, "DB_CONNECTION_STRING_FILE": str(self.file_of("keeper"))},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def file_of(self, role: str) -> Path:
        return self.credentials / role / "db_connection_string"

    def _common(self, policy: str | None = None) -> list[str]:
        return ["--run", self.name, "--model_name_or_path", str(MODEL)]

    def _start(self, name: str, command: list[str]) -> None:
        before = os.environ.get("DB_CONNECTION_STRING_FILE")
        os.environ["DB_CONNECTION_STRING_FILE"] = str(self.file_of(name.rstrip("0123456789")))
        try:
            super()._start(name, command)
        finally:
            del os.environ["DB_CONNECTION_STRING_FILE"]
            assert before is None
