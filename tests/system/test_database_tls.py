"""MongoDB with TLS as deploy/docker-compose.tls.yml starts it, with a real mongod: certificates, preparation and health check."""

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from pymongo.errors import ServerSelectionTimeoutError

from shared.processes.mongod import LIGHT, find_mongod, free_port
from shared.store import Store
from tests.system.processes import ROOT
from tests.system.secured import REPLICA_SET, tandem

MONGO = ROOT / "deploy" / "mongo"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl, which makes the certificates"),
]
OPTIONS = ("--tlsMode requireTLS", "--tlsAllowConnectionsWithoutCertificates")


def certificates(folder: Path) -> None:
    for name in ("public", "gateways"):
        (folder / name).mkdir(exist_ok=True)
    servers = [f"{folder}=DNS:mongo,IP:127.0.0.1", f"{folder / 'gateways'}=DNS:gateways"]
    subprocess.run(["bash", str(MONGO / "certificates.sh"), str(folder / "public"), *servers], check=True, timeout=120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """(its port, the folder of its certificates)"""
    folder = tmp_path_factory.mktemp("tls")
    certificates(folder)
    key = folder / "keyfile"
    key.write_bytes(base64.b64encode(os.urandom(96)))
    key.chmod(0o400)
    (folder / "data").mkdir()
    script = (MONGO / "start.sh").read_text()
    assert all(option in script for option in OPTIONS)
    port = free_port()
    options = " ".join(OPTIONS).split()
    options += ["--tlsCertificateKeyFile", str(folder / "server.pem"), "--tlsCAFile", str(folder / "ca.pem")]
    options += ["--replSet", REPLICA_SET, "--keyFile", str(key), "--bind_ip", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(find_mongod()), *options, "--dbpath", str(folder / "data"), *LIGHT], stdout=log, stderr=log
        )
    try:
        where = ["--folder", str(folder / "credentials"), "--member", f"127.0.0.1:{port}", "--port", str(port)]
        ca = str(folder / "public" / "ca.pem")
        done = tandem(
            "database", "prepare", *where, "--outside_port", str(port), "--tls_ca_file", ca, "--run", "tlsrun"
        )
        assert done.returncode == 0, done.stderr
        yield port, folder
    finally:
        process.terminate()
        process.wait(60)


async def test_a_service_reaches_the_database_by_its_connection_string_alone(server: tuple[int, Path]) -> None:
    text = (server[1] / "credentials" / "sampler" / "runs" / "tlsrun" / "db_connection_string").read_text()
    async with Store.open(text, "tlsrun", timeout_s=60) as store:
        assert await store.runs.get() is not None


def test_without_tls_nothing_is_answered(server: tuple[int, Path]) -> None:
    with (
        pymongo.MongoClient("127.0.0.1", server[0], directConnection=True, serverSelectionTimeoutMS=2000) as client,
        pytest.raises(ServerSelectionTimeoutError),
    ):
        client.admin.command("ping")


@pytest.mark.parametrize("tls", [True, False])
def test_the_health_check_asks_by_tls(server: tuple[int, Path], tls: bool) -> None:
    """What waits for the database's health would wait for ever otherwise."""
    environment = os.environ | ({"TLS_FOLDER": str(server[1])} if tls else {})
    words = ["bash", str(MONGO / "is_primary.sh"), f"127.0.0.1:{server[0]}"]
    assert (subprocess.run(words, env=environment, timeout=120, check=False).returncode == 0) is tls


def test_certificates_are_made_once_and_the_key_is_the_servers_alone(server: tuple[int, Path]) -> None:
    folder = server[1]
    before = (folder / "server.pem").read_bytes()
    certificates(folder)
    assert (folder / "server.pem").read_bytes() == before
    assert (folder / "server.pem").stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in (folder / "public" / "ca.pem").read_bytes()
    assert [path.name for path in (folder / "public").iterdir()] == ["ca.pem"]
    assert not list(folder.glob("ca.key*")), "the authority signs nothing else"
