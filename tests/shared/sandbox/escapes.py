"""What every escape attempt meets at each isolation level of this machine: `python -m tests.shared.sandbox.escapes [LEVEL...]`.

The attempts are in tests/shared/sandbox/escape_*.py; the suite runs them in tests/shared/sandbox/test_escapes.py. Exit status 1
if one meets something else than its table says.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from shared.sandbox import (
    ContainerOptions,
    IsolationLevel,
    Launch,
    available_levels,
    discard,
    new_folder,
    start,
)
from shared.sandbox.landlock import abi
from shared.sandbox.launch import SandboxLimits
from tests.shared.sandbox.escape_files import FILES
from tests.shared.sandbox.escape_kernel import KERNEL, NETWORK
from tests.shared.sandbox.escape_programs import MEMORY_AND_OUTPUT, PRELUDE, PROCESSES, SMALL, Escape

ESCAPES = (*PROCESSES, *MEMORY_AND_OUTPUT, *FILES, *KERNEL, *NETWORK)
IMAGE = os.environ.get("TANDEM_TEST_IMAGE", "debian:bookworm-slim")  # with a python3
PATIENCE_S = 240.0
_BEGIN = "##"
_SECRET = "TANDEM_TEST_SECRET"

_ONE_AFTER_THE_OTHER = """
for name, code in CASES:
    print("##", name, flush=True)
    try:
        exec(code, globals())
    except BaseException as exc:
        print("met", getattr(exc, "errno", None) or type(exc).__name__, flush=True)
"""


class Machine:
    """A level, and what there is to be reached outside of the sandbox: another session, files, sockets, a secret."""

    def __init__(self, level: IsolationLevel, state: Path, values: dict[str, Any], readable: tuple[Path, ...]) -> None:
        self.level, self.state, self.values, self._readable = level, state, values, readable

    async def run(self, code: str, limits: SandboxLimits, **values: Any) -> str:
        """What the program printed, and how it ended."""
        program = "python3" if self.level is IsolationLevel.CONTAINER else sys.executable
        begin = "import json, sys; globals().update(json.loads(sys.stdin.readline()))\n"
        folder = new_folder(self.state)
        owner = os.stat(folder).st_uid
        launch = Launch(
            (program, "-I", "-S", "-c", PRELUDE + begin + code),
            folder,
            limits=limits,
            readable=self._readable,
            container=ContainerOptions(image=IMAGE),
        )
        process = await start(launch, self.level)
        try:
            process.stdin.write(json.dumps({**self.values, **values, "WARDEN": process.pid}).encode() + b"\n")
            async with asyncio.timeout(PATIENCE_S):
                output = await process.stdout.read()
                status = await process.wait()
            errors = process.stderr[-300:] if status > 0 and not output else ""
            how = f"signal {-status}" if status < 0 else f"status {status}" if status else ""
            exceeded = f"exceeded {process.exceeded.partition(':')[0]}" if process.exceeded else ""
            text = output[-20_000:].decode("utf-8", "replace").replace("\0", "")
            return "\n".join(filter(None, (text.strip()[-20_000:], errors, exceeded, how, "ended")))
        finally:
            await process.stop()
            assert owner == os.getuid() or processes_of(owner) == [], "nothing is left of a session"
            await discard(folder)
            assert not folder.exists(), "a session's folder can be removed with all that is in it"


def processes_of(user: int) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if user in one.uids() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


@asynccontextmanager
async def machine(level: IsolationLevel) -> AsyncIterator[Machine]:
    async with contextlib.AsyncExitStack() as stack:
        state = Path(tempfile.mkdtemp(prefix="tandem-escapes-"))
        stack.callback(shutil.rmtree, state, ignore_errors=True)
        os.chmod(state, 0o711)
        os.environ[_SECRET] = "gateway-secret"
        stack.callback(os.environ.pop, _SECRET)
        other = new_folder(state)
        other.joinpath("secret").write_text("secret")
        sleeper = await start(Launch(("sleep", "600"), other), IsolationLevel.PROCESS)
        stack.push_async_callback(discard, other)
        stack.push_async_callback(sleeper.stop)
        token = state / "token"
        token.touch(mode=0o600)
        open_folder = state / "open"
        open_folder.mkdir(mode=0o755)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"tandem-escapes-{os.getpid()}"
        for address in (f"\0{abstract}", str(open_folder / "socket")):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen()
        os.chmod(open_folder / "socket", 0o777)
        values = {
            "OTHER": await _child(sleeper.pid),
            "OTHER_FOLDER": str(other),
            "TOKEN": str(token),
            "PORT": listener.getsockname()[1],
            "ABSTRACT": abstract,
            "SOCKET": str(open_folder / "socket"),
            "RAW_DISK": _disk(),
            "SOURCES": str(Path(__file__).parents[3]),
            "HOME": os.path.expanduser("~"),  # noqa: ASYNC240
            "MACHINE_TMP_FILE": str(token),
            "MACHINE_USER": Path("/etc/passwd").read_text().splitlines()[-1].split(":")[0],  # noqa: ASYNC240
            "SETUID": _setuid_program(open_folder),
            "CLONE": 56 if os.uname().machine == "x86_64" else 220,
        }
        yield Machine(level, state, values, (open_folder / "id",) if (open_folder / "id").exists() else ())


async def _child(warden: int) -> int:
    """The process that the warden watches."""
    async with asyncio.timeout(PATIENCE_S):
        while not (children := psutil.Process(warden).children()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return children[0].pid


def _disk() -> str:
    names = ("vda", "sda", "nvme0n1", "loop0")
    return next((f"/dev/{name}" for name in names if os.path.exists(f"/dev/{name}")), "/dev/vda")


def _setuid_program(folder: Path) -> str:
    """A program that tells its user, and belongs to root if this process is root."""
    path = folder / "id"
    shutil.copyfile(shutil.which("id") or "/usr/bin/id", path)
    path.chmod(0o4755)
    return str(path)


async def batch(where: Machine, escapes: Sequence[Escape]) -> dict[str, str]:
    """Outcomes of those that need no sandbox of their own."""
    cases = [(one.name, one.code) for one in escapes if not one.alone]
    text = await where.run(_ONE_AFTER_THE_OTHER, SMALL, CASES=cases)
    parts = re.split(rf"^{_BEGIN} (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


async def alone(where: Machine, escape: Escape) -> str:
    return await where.run(escape.code, escape.limits)


def missing(escape: Escape, level: IsolationLevel) -> str:
    """What the machine lacks to stop the attempt at this level; empty: nothing."""
    if level is not IsolationLevel.PROCESS or not escape.needs:
        return ""
    for need in escape.needs.split("|"):
        kind, _, version = need.partition(" ")
        if (kind == "root" and os.geteuid() == 0) or (kind == "landlock" and abi() >= int(version)):
            return ""
    return escape.needs


def as_expected(escape: Escape, level: IsolationLevel, outcome: str) -> bool:
    return any(words in outcome for words in escape.expected(level))


async def table(levels: Sequence[IsolationLevel]) -> int:
    outcomes: dict[IsolationLevel, dict[str, str]] = {}
    for level in levels:
        async with machine(level) as where:
            outcomes[level] = await batch(where, ESCAPES)
            for escape in ESCAPES:
                if escape.alone:
                    outcomes[level][escape.name] = await alone(where, escape)
    wrong = 0
    print(f"| attempt | {' | '.join(levels)} |\n|---|{'---|' * len(levels)}")
    for escape in ESCAPES:
        row = []
        for level in levels:
            outcome = outcomes[level].get(escape.name, "no answer")
            right = as_expected(escape, level, outcome) or bool(missing(escape, level))
            wrong += not right
            row.append(_short(outcome) + ("" if right else " **unexpected**"))
        print(f"| {escape.name} | {' | '.join(row)} |")
    print(f"attempts={len(ESCAPES)} levels={','.join(levels)} unexpected={wrong}")
    return 1 if wrong else 0


def _short(outcome: str) -> str:
    lines = [line for line in outcome.splitlines() if line != "ended"] or ["ended"]
    return ", ".join(dict.fromkeys(line.strip()[:60] for line in lines[-2:]))


if __name__ == "__main__":
    asked = [IsolationLevel(name) for name in sys.argv[1:]] or available_levels()
    sys.exit(asyncio.run(table(asked)))
