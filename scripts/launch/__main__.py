"""One command from a run name to a trained policy, on this machine.

    lock ─▶ database ─▶ tools ─▶ engine ─▶ samplers ─▶ trainer        (each only if it is not given)
         ─▶ evaluate version 0 ─▶ queue the tasks ─▶ train to the end ─▶ evaluate the result ─▶ summary

With `only_evaluate` there is no trainer, and the evaluation of version 0 is all; then comes a report of it.

Every step is idempotent: the same command continues an interrupted run. If a part dies, this says which, shows the end of
its log, stops the rest and exits with 1. Ctrl-C stops all of it and exits with 130; a second one does not wait.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from scripts.launch import commands, report, summary
from scripts.launch.children import POLL_S, Child, ChildDied, Children
from scripts.launch.clock import PhaseClock
from scripts.launch.display import Display
from scripts.launch.figures import StepMetrics, take_snapshot
from scripts.launch.lock import RunLock
from scripts.launch.rounds import EvalRound, import_eval, import_train, setup_seconds
from scripts.launch.settings import ROOT, LaunchConfig
from shared.errors import TandemError
from shared.evaluation import EvaluationRound, evaluation_rounds
from shared.mongod import Mongod
from shared.states import ServiceStatus
from shared.store import Store

SNAPSHOT_S = 2.0
TOOLS_URL = re.compile(r"^tools at (\S+)$", re.MULTILINE)
INTERRUPTED = 130


def main() -> None:
    config = LaunchConfig.load_or_exit()
    os.chdir(ROOT)
    logging.basicConfig(level=logging.WARNING)
    console = Console(emoji=False)  # rich would show a tram in the id main:train:0:t0
    suffix = "" if config.is_main else f"_{config.machine_rank}"
    try:
        with RunLock(config.folder / f"launch{suffix}.lock") as lock, Children(config.run, ROOT, lock.fd) as children:
            if config.engine == "sglang":
                install_sglang()
            launch = Launch(config, children, Display(config.run, console))
            status = asyncio.run(launch.until_done_or_interrupted())
        if launch.evaluated is not None:
            report.show(console, config, launch.evaluated)
        elif launch.figures is not None:
            summary.show(console, config, launch.figures, launch.metrics)
    except TandemError as exc:
        console.print(f"[bold red]{type(exc).__name__}[/bold red]", soft_wrap=True)
        console.print(str(exc), markup=False, highlight=False, soft_wrap=True)
        status = 1
    sys.exit(status)


def install_sglang() -> None:
    """Before anything is started, since the first time takes minutes; its progress lines go to the terminal."""
    if status := subprocess.run(commands.install_sglang(), stdin=subprocess.DEVNULL, check=False).returncode:
        raise TandemError(f"SGLang could not be installed (status {status}, see above); without it: --engine local")


class Launch:
    """One launch of a run: the steps, in order, over the children they start."""

    def __init__(self, config: LaunchConfig, children: Children, display: Display) -> None:
        self.config = config
        self.children = children
        self.display = display
        self.metrics = StepMetrics(config.folder / "metrics.jsonl")
        self.clock = PhaseClock(config.folder / "seconds.json")
        self.database = config.db_connection_string or ""
        self.figures: dict[str, Any] | None = None  # the summary, once there is one
        self.evaluated: EvaluationRound | None = None  # the same of a launch that only evaluates
        display.metrics = self.metrics
        children.tell = display.note

    async def until_done_or_interrupted(self) -> int:
        """Run the steps while watching children and signals. Returns the exit status; raises what a step or child raised."""
        interrupted = asyncio.Event()
        tasks = {
            asyncio.create_task(self.steps(), name="steps"),
            asyncio.create_task(self.children.watch(), name="watch"),
            asyncio.create_task(self.display.draw(), name="display"),
            asyncio.create_task(interrupted.wait(), name="interrupt"),
        }
        with _signals_set(interrupted, self._hurry):
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                first = min(done, key=lambda task: task.get_name() != "steps")
                if first.get_name() == "interrupt":
                    self.display.note("interrupted: stopping everything (again: at once)")
                    return INTERRUPTED
                if first.exception() is not None:
                    await asyncio.sleep(2 * POLL_S)
                    self.children.check()  # a child's death is the cause, what it did to the steps is not
                return first.result() or 0
            except TandemError as exc:
                self.display.note(f"{str(exc).splitlines()[0].partition(';')[0]}: stopping everything, details below")
                raise
            finally:
                await self._stop(tasks)

    async def _stop(self, tasks: set[asyncio.Task[Any]]) -> None:
        self.display.phase, self.display.phase_detail = "stopping", str
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.clock.end()
        await asyncio.to_thread(self.children.stop)

    def _hurry(self) -> None:
        self.children.hurry = True

    # ---------------------------------------------------------------- the steps

    async def steps(self) -> int:
        config = self.config
        self.clock.record("setup", setup_seconds(Path(sys.prefix)))
        self.clock.begin("start")
        await self.start_database()
        async with Store.open(self.database, config.run) as store, self._refreshed(store):
            if config.is_main and await self.is_finished(store):
                return await self.finish(store)
            tools_url = await self.start_tools()
            self.start_keepers()
            self.start_samplers(tools_url)
            trainer = None if config.only_evaluate else self.start_trainer()
            if not config.is_main:
                return await self.follow(store, trainer)
            await import_eval(store, config)
            await self.evaluate(store, 0, "eval_before")
            if trainer is not None:
                await self.train(store, trainer)
                for version in await self._still_to_evaluate(store):
                    await self.evaluate(store, version, "eval_after")
            self.clock.end()
            await asyncio.to_thread(
                self.children.stop, ("trainer", "sampler", "keeper", "tools")
            )  # last figures arrive
            return await self.finish(store)

    async def is_finished(self, store: Store) -> bool:
        """Is nothing left to do but to show the summary again? (In doubt no: every step notices that itself.)"""
        self.metrics.read()
        wanted = 0 if self.config.only_evaluate else self.config.max_steps()
        if wanted is None or self.metrics.last_step < wanted:
            return False
        await import_eval(store, self.config)  # the file may have grown
        versions = {0, *await self._still_to_evaluate(store)}
        return all([await EvalRound(store, self.config.policy, version).is_complete() for version in versions])

    async def finish(self, store: Store) -> int:
        """The summary, or the report, from what the store and the metrics hold."""
        self.metrics.read()
        rounds = await evaluation_rounds(store, self.config.policy)
        if self.config.only_evaluate:
            self.evaluated = rounds[0]
            await asyncio.to_thread(report.write, self.config, self.evaluated, self.clock.seconds)
            return 0
        self.figures = await summary.summarize(store, self.config, self.metrics, rounds, self.clock.seconds)
        await asyncio.to_thread(summary.write, self.config, self.figures, self.metrics)
        return 0

    async def _still_to_evaluate(self, store: Store) -> list[int]:
        """Versions whose round is under way, in order, and the newest."""
        newest = await store.versions.newest(self.config.policy)
        under_way = await store.evaluation.open_versions(self.config.policy)
        return sorted({*under_way, 0 if newest is None else newest.version})

    async def start_database(self) -> None:
        if self.config.db_connection_string is None:
            server = Mongod(self.config.folder / "mongodb")
            await asyncio.to_thread(self.children.start_mongod, server)
            self.database = server.connection_string
            self.display.note(f"MongoDB: {self.database} database {self.config.run} (open it with Compass)")

    async def start_tools(self) -> str:
        """The URL of the tools, once they answer."""
        if self.config.mcp_manager_url:
            return self.config.mcp_manager_url
        log_path = self.config.log_path(
            "tools" + (f"_{self.config.machine_rank}" if self.config.num_machines > 1 else "")
        )
        child = self.children.start("tools", "tools", commands.tools(), log_path, commands.environment())
        url: str = await self._until("the tool server to print its URL", lambda: _tools_url(child))
        await self._until(f"{url} to answer", lambda: _listens(url))
        self.display.note(f"tools: {url}")
        return url

    def start_keepers(self) -> None:
        for i, url in enumerate(self.config.engine_urls or [None]):
            number = i if self.config.engine_urls else self.config.machine_rank
            command = commands.keeper(self.config, self.database, url)
            log_path = self.config.log_path(f"engine_{number}")
            self.children.start(f"engine {number}", "keeper", command, log_path, commands.environment())

    def start_samplers(self, tools_url: str) -> None:
        first = self.config.machine_rank * self.config.num_samplers
        for i in range(first, first + self.config.num_samplers):
            command = commands.sampler(self.config, self.database, tools_url)
            log_path = self.config.log_path(f"sample_{i}")
            self.children.start(f"sampler {i}", "sampler", command, log_path, commands.environment())

    def start_trainer(self) -> Child:
        rank = self.config.machine_rank
        command = commands.trainer(self.config, self.database)
        environment = commands.trainer_environment(self.config)
        child = self.children.start(
            f"trainer {rank}",
            "trainer",
            command,
            self.config.log_path(f"train_{rank}"),
            environment,
            ends_itself=True,
        )
        self.display.trainer = child
        return child

    async def evaluate(self, store: Store, version: int, phase: str) -> None:
        """Play the held-out tasks with one version, unless that was done before."""
        played = EvalRound(store, self.config.policy, version)
        if not await played.is_complete():
            self.clock.begin("start")
            self.display.begin_phase(f"waiting for an engine that serves version {version}")
            await self._until(f"an engine that serves version {version}", lambda: self._is_served(store, version))
            self.clock.begin(phase)
            self.display.begin_phase(f"evaluating version {version}", played.progress)
            await played.play()
        self.display.note(f"held-out reward of version {version}: {await played.text()}")

    async def train(self, store: Store, trainer: Child) -> None:
        """Queue the tasks and wait for the trainer's own end. Raises ChildDied when that is not the last step's."""
        self.clock.begin("training")
        inserted = await import_train(store, self.config)
        self.display.begin_phase(f"training ({inserted} tasks queued)" if inserted else "training")
        await self.children.wait_exit(trainer)  # another end than status 0 is the watch's business
        self.metrics.read()
        run = await store.runs.get()
        wanted = run.admission[self.config.policy].num_steps if run and self.config.policy in run.admission else None
        if wanted is not None and self.metrics.last_step < wanted:
            raise ChildDied(f"stopped at step {self.metrics.last_step} of {wanted}: {trainer.obituary()}")
        self.display.note(f"trained {self.metrics.last_step} steps")

    async def follow(self, store: Store, trainer: Child | None) -> int:
        """A machine other than the first: its part is over when its trainers end, or the evaluation."""
        self.display.begin_phase("working for machine 0")
        if trainer is not None:
            return await self.children.wait_exit(trainer)
        await EvalRound(store, self.config.policy, 0).wait()
        return 0

    # ---------------------------------------------------------------- waiting and looking

    async def _until(self, what: str, ask: Callable[[], Any]) -> Any:
        """Ask until the answer is not None or False. Raises TandemError after `start_timeout_s`."""
        deadline = time.monotonic() + self.config.start_timeout_s
        while True:
            answer = ask()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise TandemError(
                    f"waited {self.config.start_timeout_s:g} s for {what}, in vain; see logs/{self.config.run}_*.log, "
                    "or allow more with --start_timeout_s"
                )
            await asyncio.sleep(0.2)

    async def _is_served(self, store: Store, version: int) -> bool:
        services = await store.services.live(self.config.policy, ttl_s=15.0)
        return any(s.status == ServiceStatus.UP and s.version == version for s in services)

    @asynccontextmanager
    async def _refreshed(self, store: Store) -> AsyncIterator[None]:
        """Keep the display's figures fresh meanwhile."""
        task = asyncio.create_task(self._refresh(store), name="refresh")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _refresh(self, store: Store) -> None:
        while True:
            self.metrics.read()
            self.display.snapshot = await take_snapshot(store, self.config.policy)
            for child in self.children.losses():
                self.display.note(f"the run goes on without {child.obituary()}")
            await asyncio.sleep(SNAPSHOT_S)


def _tools_url(child: Child) -> str | None:
    found = TOOLS_URL.search(child.log_text())
    return found[1] if found else None


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0):
        return True
    return False


@contextmanager
def _signals_set(event: asyncio.Event, again: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal set `event`; a second one calls `again`."""
    loop = asyncio.get_running_loop()

    def receive() -> None:
        if event.is_set():
            again()
        event.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, receive)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


if __name__ == "__main__":
    main()
