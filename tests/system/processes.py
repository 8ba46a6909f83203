"""The services of one run as real child processes, for tests that kill them."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from tandem.launch.processes import MARK, start_time

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "assets" / "example" / "model"
TRAIN_FILE = ROOT / "assets" / "example" / "train.jsonl"

# A busy machine is no failure: what takes an idle one seconds may take minutes. A test ends as soon as it has what it waits for.
PATIENCE_S = 400.0
PATIENT = {"TANDEM_KEEPER_START_TIMEOUT_S": f"{PATIENCE_S:g}", "TANDEM_LAUNCH_START_TIMEOUT_S": f"{PATIENCE_S:g}"}


class Run:
    """One run in `folder`: start and kill its parts by name; the context's exit ends all remaining ones."""

    def __init__(self, folder: Path, *, groups_per_step: int = 2, max_steps: int = 4, max_staleness: int = 2) -> None:
        self.folder = folder
        self.name = "system"
        self.mongod = Mongod(folder / "mongodb")
        self.tools_port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keeper_flags: dict[str, str] = {}
        self.trainer_flags = {
            "output_dir": str(folder / "out"),
            "groups_per_step": str(groups_per_step),
            "max_steps": str(max_steps),
            "max_staleness": str(max_staleness),
            "learning_rate": "1e-4",
            "save_steps": "1",
            "keep_versions": "50",
            "num_threads": "1",
            "wait_for_tasks_s": "3600",  # tests import more as they go
            "drop_zero_advantage": "false",  # a step of equal rewards counts too: tests count steps
        }
        self.sampler_flags = {
            "mcp_manager_url": f"http://127.0.0.1:{self.tools_port}/mcp",
            "max_turns": "5",
            "max_new_tokens": "48",
            "max_tokens": "512",
            "max_concurrent_episodes": "8",
            "lease_s": "4",
            "renew_s": "1",
            "retry_delay_s": "0.2",
            "grace_s": "5",
        }

    def __enter__(self) -> Self:
        self.mongod.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.processes):
            self.end(name, signal.SIGKILL)
        self.mongod.stop()

    # ------------------------------------------------------------------ parts

    def start_tools(self) -> None:
        server = str(ROOT / "assets" / "example" / "tool_server.py")
        self._start("tools", [sys.executable, server, "--transport", "streamable-http", "--port", str(self.tools_port)])
        deadline = time.monotonic() + PATIENCE_S
        while "tools at" not in self.log("tools"):
            assert time.monotonic() < deadline, self.log("tools")
            time.sleep(0.05)

    def start_keeper(self, policy: str | None = None, name: str | None = None) -> None:
        self._start(
            name or part("keeper", policy),
            [sys.executable, "-m", "sampler.engine.keeper", *self._common(policy), *_flags(self.keeper_flags)],
        )

    def start_sampler(self, name: str = "sampler", policy: str | None = None) -> None:
        self._start(name, [sys.executable, "-m", "sampler", *self._common(policy), *_flags(self.sampler_flags)])

    def start_gateway(self, name: str, port: int) -> None:
        flags = {k: v for k, v in self.sampler_flags.items() if k != "mcp_manager_url"}
        flags |= {"gateway_port": str(port), "attempt_idle_s": "30"}
        self._start(name, [sys.executable, "-m", "sampler.gateway", *self._common(None), *_flags(flags)])

    def start_trainer(self, num_processes: int = 1, policy: str | None = None) -> None:
        launch = [str(Path(sys.executable).with_name("accelerate")), "launch", "--config_file", "assets/fsdp2.yml"]
        launch += ["--num_processes", str(num_processes), "--main_process_port", str(free_port()), "-m", "trainer"]
        flags = self.trainer_flags
        if policy is not None:
            flags = flags | {"output_dir": f"{flags['output_dir']}/{policy}"}
        self._start(part("trainer", policy), [*launch, *self._common(policy), *_flags(flags)])

    def start_all(self, samplers: int = 1, trainer_processes: int = 1) -> None:
        self.start_tools()
        self.start_keeper()
        for i in range(samplers):
            self.start_sampler(f"sampler{i}")
        self.start_trainer(trainer_processes)

    def end(self, name: str, sig: signal.Signals = signal.SIGTERM, timeout_s: float = 120.0) -> int:
        """Send `sig` to a part and its descendants, wait, and return its exit status."""
        process = self.processes[name]
        if process.poll() is None:
            parent = psutil.Process(process.pid)
            started = parent.children(recursive=True) if sig is signal.SIGKILL else []  # torch's are in other sessions
            os.killpg(process.pid, sig)
            for child in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        status = process.wait(timeout_s)
        del self.processes[name]
        return status

    def wait(self, name: str, timeout_s: float = PATIENCE_S) -> int:
        """Until a part ends by itself."""
        status = self.processes[name].wait(timeout_s)
        del self.processes[name]
        return status

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # ------------------------------------------------------------------ what the database says

    async def until(self, what: str, ask: Callable[[Store], Awaitable[bool]], timeout_s: float = PATIENCE_S) -> None:
        """Ask the store until it says yes. Fails with the end of every log."""
        async with Store.open(self.mongod.connection_string, self.name) as store:
            deadline = time.monotonic() + timeout_s
            while not await ask(store):
                if time.monotonic() > deadline:
                    tails = "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in self.logs())
                    raise AssertionError(f"timed out after {timeout_s:g} s waiting for {what}\n{tails}")
                await asyncio.sleep(0.1)

    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def _common(self, policy: str | None = None) -> list[str]:
        flags = {"run": self.name, "db_connection_string": self.mongod.connection_string}
        return _flags(flags | {"model_name_or_path": str(MODEL)} | ({"policy": policy} if policy else {}))

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), **PATIENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def verify(run: Run) -> str:
    """The engine's log-probs equal a recomputation under the very weights that sampled them; returns the report."""
    flags = ["--run", run.name, "--db_connection_string", run.mongod.connection_string, "--tolerance", "1e-4"]
    done = subprocess.run(
        [sys.executable, "-m", "tandem.what_if.verify", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def engine_of(run: Run, keeper: str = "keeper") -> psutil.Process:
    """The process of a keeper's engine: the guard between them ends when the engine's last process has."""
    (guard,) = psutil.Process(run.processes[keeper].pid).children()
    (engine,) = guard.children()
    return engine


def part(kind: str, policy: str | None) -> str:
    """The name of a keeper or trainer; None: of the only policy."""
    return kind if policy is None else f"{kind}_{policy}"


def launched(run: str) -> list[int]:
    """Living processes that a launcher of `run` started, by the mark in their environment.

    A service hides its environment from an ordinary user's processes: it is known by the run among its arguments.
    """
    found = []
    for entry in Path("/proc").iterdir():
        try:
            marked = entry.name.isdigit() and f"{MARK}={run}-".encode() in (entry / "environ").read_bytes()
        except PermissionError:
            marked = _is_service(entry, run)
        except OSError:
            continue
        if marked and start_time(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found


def _is_service(entry: Path, run: str) -> bool:
    with contextlib.suppress(OSError):
        return run.encode() in (entry / "cmdline").read_bytes().split(b"\0")
    return False


def _flags(values: dict[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", value)]
