"""The sampler's secrets as visible to a shell tool: with the sampler's own user, as another user, and in a sandbox."""

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sampler.core.tools import ToolServer
from sampler.core.tools.isolation import isolated
from shared.errors import ConfigError
from shared.processes.mongod import Mongod
from tests.sampler.boxes import PATIENCE_S

ROOT = Path(__file__).parents[2]
CONNECTION = "mongodb://me:pa55-on-the-command-line@db"
OTHER_USER = "nobody"  # the unprivileged user that every Linux has
LOOKS = {
    "arguments": "tr '\\0' ' ' < /proc/PARENT/cmdline",
    "environment": "tr '\\0' ' ' < /proc/PARENT/environ",
    "memory": "head -c 1 /proc/PARENT/mem",  # the first page is not mapped: an input/output error where memory can be read
    "open files": "ls -l /proc/PARENT/fd",
    "me": "id -un; env; grep CapEff /proc/self/status",
}
# Root without capabilities is to its own processes what any user is to theirs.
AS_A_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"] if os.geteuid() == 0 else []
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tools as another user")
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def looks(starter: list[str], **settings: object) -> dict[str, str]:
    service = [sys.executable, "-m", "tests.sampler.beside_a_shell", CONNECTION, json.dumps(settings), *LOOKS.values()]
    ended = subprocess.run(
        [*starter, *service],
        env={"PATH": os.environ["PATH"], "HOME": "/", "SEARCH_KEY": "s3cret", "TANDEM_CHILD_OF": "run-1:sampler 1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return dict(zip(LOOKS, json.loads(ended.stdout), strict=True))


def test_a_tool_with_the_samplers_user_finds_no_secret() -> None:
    naked, found = looks(AS_A_USER, conceal=False), looks(AS_A_USER)
    assert "pa55-on" in naked["arguments"]
    assert "s3cret" in naked["environment"]
    assert "denied" not in naked["memory"]
    everything = json.dumps(found)
    assert "pa55-on" not in everything
    assert "s3cret" not in everything
    assert f"beside_a_shell {'*' * len(CONNECTION)} " in found["arguments"], "the rest stays readable"
    for look in ("environment", "memory", "open files"):
        assert "denied" in found[look], found[look]


@needs_root
def test_as_root_the_environment_is_empty_except_for_the_launchers_mark() -> None:
    found = looks([])
    assert "s3cret" not in found["environment"]
    assert "TANDEM_CHILD_OF=run-1:sampler 1" in found["environment"]


@needs_root
def test_tools_of_another_user_can_read_neither_memory_nor_files_of_a_root_process() -> None:
    script = "\n".join(LOOKS.values()).replace("PARENT", str(os.getpid()))
    (server,) = isolated([ToolServer(name="s", command="/bin/sh", args=("-c", script))], OTHER_USER, "off")
    assert server.command is not None
    ended = subprocess.run(
        [server.command, *server.args], env=dict(server.env), cwd="/", capture_output=True, text=True, check=False
    )
    assert OTHER_USER in ended.stdout.split()
    assert f"HOME={pwd.getpwnam(OTHER_USER).pw_dir}" in ended.stdout
    assert "CapEff:\t0000000000000000" in ended.stdout
    assert ended.stderr.count("denied") == 3, ended.stderr


@needs_bubblewrap
def test_tools_in_the_sandbox_see_only_their_own_processes() -> None:
    found = looks([], sandbox="bubblewrap")
    assert "0000000000000000" in found["me"], "no capabilities"
    for look in ("arguments", "environment", "memory", "open files"):
        assert re.search(r"No such file|nonexistent", found[look], re.IGNORECASE), found[look]


def test_a_sandbox_that_does_not_work_here_stops_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    servers = [ToolServer(name="s", command="x")]
    with pytest.raises(ConfigError, match="tool_user: there is no user 'no-such-user'"):
        isolated(servers, "no-such-user", "off")
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces here >&2; exit 1")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match="ended with status 1: no namespaces here; changing users needs root"):
        isolated(servers, None, "bubblewrap")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="bwrap is not on the PATH; install bubblewrap"):
        isolated(servers, None, "bubblewrap")
    remote = [ToolServer(name="s", url="http://h/mcp")]
    assert isolated(remote, "no-such-user", "bubblewrap") == remote, "what runs elsewhere needs no sandbox here"


@pytest.mark.parametrize("module", ["sampler", "sampler.engine.keeper"])
def test_services_show_neither_their_connection_string_nor_their_environment(
    module: str, mongod: Mongod, tmp_path: Path
) -> None:
    flags = ["--run", "secrets", "--model_name_or_path", str(ROOT / "assets" / "example" / "model")]
    if module != "sampler":
        flags += ["--engine_url", "http://127.0.0.1:9"]
    connection = mongod.connection_string
    service = subprocess.Popen(
        [sys.executable, "-m", module, "--db_connection_string", connection, *flags],
        cwd=ROOT,
        env={**os.environ, "SEARCH_KEY": "s3cret", "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    place = Path(f"/proc/{service.pid}")
    give_up_at = time.monotonic() + PATIENCE_S

    def shows(file: str, text: str) -> bool:
        """Once it may not be read, it shows nothing."""
        try:
            return text.encode() in (place / file).read_bytes()
        except PermissionError:
            return False

    try:
        while shows("environ", "s3cret") or shows("cmdline", connection):
            assert service.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        assert service.poll() is None
    finally:
        service.kill()
        service.wait()
