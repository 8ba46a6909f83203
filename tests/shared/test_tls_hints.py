"""A server with TLS that cannot be reached is an error that names TLS and the remedy: real mongods, certificates of openssl."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import StoreUnavailable
from shared.processes.mongod import LIGHT, find_mongod, free_port
from shared.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl, which makes the certificates"),
]
# {the last words of a connection string: words of the message; None: connected}
STRICT = {
    "": "it requires TLS, expected tls=true",
    "?tls=true": "expected tlsCAFile=FILE",
    "?tls=true&tlsCAFile={ca}": "expected tlsCertificateKeyFile=FILE",
    "?tls=true&tlsCAFile={ca}&tlsCertificateKeyFile={pem}": None,
}
WITHOUT_CLIENTS = {"": "it requires TLS, expected tls=true", "?tls=true&tlsCAFile={ca}": None}
PLAIN = {"?tls=true": "uses no TLS", "": None}


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "rsa:2048", "-nodes"]
    openssl(
        folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=an authority"
    )
    openssl(folder, "req", *key, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=127.0.0.1")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl(folder, "x509", "-req", "-in", "own.csr", *signing, "-out", "own.crt")
    (folder / "own.pem").write_text((folder / "own.key").read_text() + (folder / "own.crt").read_text())
    return folder


@pytest.fixture(params=["strict", "without clients' certificates", "plain"])
def server(
    request: pytest.FixtureRequest, certificates: Path, tmp_path: Path
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """(its port, what is expected)"""
    tls = [
        "--tlsMode=requireTLS",
        f"--tlsCertificateKeyFile={certificates / 'own.pem'}",
        f"--tlsCAFile={certificates / 'ca.pem'}",
    ]
    options, expected = {
        "strict": (tls, STRICT),
        "without clients' certificates": ([*tls, "--tlsAllowConnectionsWithoutCertificates"], WITHOUT_CLIENTS),
        "plain": ([], PLAIN),
    }[request.param]
    port = free_port()
    command = [
        str(find_mongod()),
        "--dbpath",
        str(tmp_path),
        "--port",
        str(port),
        "--bind_ip",
        "127.0.0.1",
        *LIGHT,
        *options,
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield port, expected
    finally:
        process.terminate()
        process.wait(60)


async def test_the_message_names_what_the_connection_string_lacks(
    server: tuple[int, dict[str, str | None]], certificates: Path
) -> None:
    port, expected = server
    for options, words in expected.items():
        uri = f"mongodb://127.0.0.1:{port}/" + options.format(ca=certificates / "ca.pem", pem=certificates / "own.pem")
        if words is None:
            async with Store.open(uri, "somerun", timeout_s=120):
                continue
        with pytest.raises(StoreUnavailable, match=words):
            async with Store.open(uri, "somerun", timeout_s=5):
                pass


async def test_a_server_that_is_not_there_is_no_question_of_tls() -> None:
    with pytest.raises(StoreUnavailable, match="Is it running"):
        async with Store.open(f"mongodb://127.0.0.1:{free_port()}/", "somerun", timeout_s=1):
            pass
