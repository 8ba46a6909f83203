"""Every program begins alike: Ctrl-C while it loads is one line, an ignored signal stays ignored, nobody reads its secrets, and
output that cannot be written costs a service nothing."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shared.configuration.secrets import SECRETS
from shared.processes.concealment import SECRET_FLAG
from shared.processes.output import usable_size
from shared.processes.signals import not_ignored
from tests.conftest import ROOT
from tests.test_import_rule import module_name

PATIENCE_S = 120.0
PROGRAMS = (
    *(
        "tandem",
        "sampler",
        "sampler.environments",
        "sampler.gateway",
        "sampler.mcp_docker",
        "sampler.engine.keeper",
        "sampler.engine.keeper.health",
        "tandem.launch.check_model",
        "tandem.plan",
    ),
    *(
        "sampler.engine.local",
        "sampler.engine.vllm",
        "trainer.quantize",
        "tandem.what_if.engine_replay",
        "tandem.what_if.resettle",
        "trainer",
        "trainer.launch",
    ),
    *("trainer.sft", "tandem.what_if.verify", "trainer.export", "tandem.what_if.replay", "tandem.what_if.bisect"),
    "tandem.launch",
)
# Interrupts the program as soon as it imports something slow: pydantic, the first one of each.
WHILE_IT_LOADS = """
import runpy, signal, sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in ("pydantic", "typer", "argparse", "torch", "accelerate", "asyncio"):
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Slow())
sys.argv = [sys.argv[1], "--help"]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", PROGRAMS)
def test_ctrl_c_while_a_program_loads_is_one_line_and_status_130(module: str) -> None:
    command = [sys.executable, "-c", WHILE_IT_LOADS, module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


def test_every_program_is_among_them() -> None:
    """A file with `run_command` that does not begin with `begin_program` would answer Ctrl-C with a traceback."""
    found = set()
    for path in [
        path for top in ("shared", "sampler", "trainer", "scripts/tandem") for path in (ROOT / top).rglob("*.py")
    ]:
        text = path.read_text(encoding="utf-8")
        if re.search(r"^    run_command\(main\)", text, re.MULTILINE) and not path.match("shared/processes/*.py"):
            assert re.search(r"^    begin_program\(", text, re.MULTILINE), path
            found.add(module_name(path).removesuffix(".__main__"))
    assert found == set(PROGRAMS) - {"tandem"}


def test_a_signal_that_the_parent_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert not_ignored(signal.SIGTERM, signal.SIGHUP) == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)
    program = (
        "from shared.processes.interrupt import *; import signal; begin_program(); run_command(lambda: print('ran'))"
    )
    shell = f"trap '' INT; exec {shlex.quote(sys.executable)} -c \"{program}; signal.raise_signal(2); print('on')\""
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\non\n"), done.stderr


def test_every_handler_of_an_ending_signal_respects_an_ignored_one() -> None:
    """`add_signal_handler` and `signal.signal` for SIGINT, SIGTERM or SIGHUP go through `shared.processes.signals`."""
    loops = re.compile(r"for \w+ in \((?:signal\.SIG(?:INT|TERM|HUP)(?:, )?)+\):\n\s+[^\n]*(?:add_signal_handler)")
    sources = [path for top in ("shared", "sampler", "trainer", "scripts") for path in (ROOT / top).rglob("*.py")]
    assert [str(path) for path in sources if loops.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("given", "kept"), [("0", False), ("00", False), ("", False), ("-3", False), ("²", False), ("80", True)]
)
def test_a_size_that_is_none_is_no_size(given: str, kept: bool) -> None:
    environment = {"COLUMNS": given, "LINES": given, "OTHER": "0"}
    usable_size(environment)
    assert environment == ({"COLUMNS": given, "LINES": given} if kept else {}) | {"OTHER": "0"}


LOST = {
    "a pipe without a reader": "exec 3> >(exec true); sleep 0.5; exec {python} -c '{program}' 1>&3 2>&3",
    "a full device": "exec {python} -c '{program}' >/dev/full 2>/dev/full",
    "nothing": "exec {python} -c '{program}' >&- 2>&- <&-",
}
SERVICE = """
import logging, os, sys
from shared.processes.interrupt import begin_program, run_command
begin_program(is_command=IS_COMMAND)
logging.basicConfig()
def main():
    own = os.open(PATH, os.O_WRONLY | os.O_CREAT)
    assert own > 2, own
    for line in range(3000):
        print("line", line)
        sys.stdout.flush()
        logging.getLogger().error("line %d", line)
    os.write(own, b"whole")
run_command(main)
"""


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("is_command", [False, True])
def test_output_that_nobody_reads_costs_a_service_nothing_and_ends_a_command(
    tmp_path: Path, lost: str, is_command: bool
) -> None:
    path = tmp_path / "result"
    program = SERVICE.replace("IS_COMMAND", str(is_command)).replace("PATH", f'"{path}"')
    shell = LOST[lost].format(python=shlex.quote(sys.executable), program=program)
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False)
    ends = is_command and lost != "nothing"
    assert done.returncode == (1 if ends else 0), done.stderr
    assert (path.read_text() == "whole") is not ends


def test_a_command_says_in_one_line_why_its_output_is_lost() -> None:
    program = "from shared.processes.interrupt import *; begin_program(is_command=True); run_command(lambda: print('x' * 99999))"
    shell = f'exec {shlex.quote(sys.executable)} -c "{program}" >/dev/full'
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "-c: its output cannot be written: No space left on device\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_character_that_a_terminal_lacks_is_replaced(encoding: str) -> None:
    printed = "run_command(lambda: print('\\u2717 \\u4e2d \\ud83d'))"
    program = f"from shared.processes.interrupt import *; begin_program(is_command=True); {printed}"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).endswith("?\n")


MODEL = str(ROOT / "assets/example/model")
SAMPLER = (
    f"-m sampler --run few --model_name_or_path {shlex.quote(MODEL)} --db_connection_string mongodb://127.0.0.1:1/"
)


def test_too_few_open_files_are_refused_at_once() -> None:
    """By a launch, a server and a service: with 128, a run ended after 107 s with the stack of its database."""
    for program in (
        "-m tandem.launch few --only_evaluate true",
        "-m tandem mongod --folder few",
        SAMPLER,
    ):
        shell = f"ulimit -n 128; exec {shlex.quote(sys.executable)} {program}"
        done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode in (1, 2)
        said = done.stdout + done.stderr
        assert re.search(r"may open 128 files; expected at least (512|1024) \(the limit is `ulimit -Hn`", said), said
        assert "Traceback" not in said


@pytest.mark.parametrize("name", SECRETS)
def test_the_flags_of_secrets_are_recognized(name: str) -> None:
    for flag in (f"--{name}", f"--{name}=value", f"--section.{name}=value"):
        assert SECRET_FLAG.match(flag.encode()), flag
    assert not SECRET_FLAG.match(b"--max_tokens")


PASSWORD, KEY = "pa55w0rd-of-the-database", "k3y-of-an-engine"
COMMON = ("--run", "hidden", "--model_name_or_path", MODEL, "--db_connection_string")
ACCELERATE = ("--config_file", "assets/fsdp2.yml", "--num_processes", "1", "-m", "trainer")
SECRETIVE = {
    "a sampler": ("sampler", *COMMON),
    "a keeper": ("sampler.engine.keeper", *COMMON),
    "accelerate and a trainer": ("trainer.launch", *ACCELERATE, "--device", "cpu", *COMMON),
    "a command": ("tandem", "status", "hidden", "--db_connection_string"),
    "the launcher": (
        "tandem.launch",
        "hidden",
        "--only_evaluate",
        "true",
        "--engine",
        "none",
        "--db_connection_string",
    ),
}


@pytest.mark.parametrize("who", SECRETIVE)
def test_no_process_shows_a_secret_in_its_arguments_or_environment(who: str, tmp_path: Path) -> None:
    """While each waits for a database that accepts its connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"mongodb://ann:{PASSWORD}@127.0.0.1:{silent.getsockname()[1]}/"
        module, *arguments = SECRETIVE[who]
        more = ("--output_dir", str(tmp_path)) if module == "trainer.launch" else ()
        environment = os.environ | {"DB_CONNECTION_STRING": uri, "SGLANG_API_KEY": KEY}
        command = [sys.executable, "-m", module, *arguments, uri, *more]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as program:
            try:
                _connects(silent)
                seen = [program.pid, *(child.pid for child in psutil.Process(program.pid).children(recursive=True))]
                assert len(seen) > (who in ("accelerate and a trainer", "the launcher"))
                shown = {pid: _shown_by(pid) for pid in seen}
            finally:
                for child in psutil.Process(program.pid).children(recursive=True):
                    child.kill()
                program.kill()
    assert {pid: text for pid, text in shown.items() if PASSWORD in text or KEY in text} == {}
    assert all(shown.values())


def test_the_guard_of_an_engine_shows_no_key_and_hands_it_on(tmp_path: Path) -> None:
    lifeline, ours = os.pipe()
    out = tmp_path / "out"
    guard = [sys.executable, "-I", "-S", str(ROOT / "shared/processes/bound.py"), str(lifeline)]
    shell = f'echo "$SGLANG_API_KEY $2" >{out}.new; mv {out}.new {out}; sleep 600'
    command = [*guard, "sh", "-c", shell, "sh", "--api-key", KEY]
    with subprocess.Popen(command, env=os.environ | {"SGLANG_API_KEY": KEY}, pass_fds=(lifeline,)) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not out.exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert KEY not in _shown_by(process.pid)
        finally:
            os.close(ours)
            os.close(lifeline)
    assert out.read_text() == f"{KEY} {KEY}\n"


def _connects(silent: socket.socket) -> None:
    silent.settimeout(PATIENCE_S)
    silent.accept()[0].close()


def _shown_by(pid: int) -> str:
    """What this user can read of it: of a process that conceals itself, root alone the environment."""
    read = [Path(f"/proc/{pid}/cmdline").read_bytes()]
    with contextlib.suppress(PermissionError):
        read.append(Path(f"/proc/{pid}/environ").read_bytes())
    return b"".join(read).decode(errors="replace")
