"""Trains one policy, or several that take turns, on this machine with one command.

    lock ─▶ database ─▶ check the tasks
         ─▶ tools ─▶ environments ─▶ engines ─▶ samplers ─▶ trainers      (each only if it is needed and not given;
         ─▶ evaluate version 0 ─▶ queue the tasks ─▶ train to the end      every policy has engines and a trainer)
         ─▶ evaluate the result ─▶ summary

With `only_evaluate` there is no trainer: it evaluates version 0 and writes a report. Of several machines the first does
everything above; the others start their own trainer process, samplers and engine, one that joins only the latter two, and
stay until the run is over. `--dry-run` prints what would be started.

Every step is idempotent: the same command continues an interrupted run. If a child crashes, the launcher names it, prints
the end of its log, stops the rest and exits with 1; samplers are restarted a few times first. Ctrl-C stops everything and
exits with 130, SIGTERM with 143; a second Ctrl-C kills without waiting.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

import asyncio
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError
from rich.console import Console

from shared.configuration.secrets import forget_secrets
from shared.documents.states import ServiceStatus
from shared.errors import ConfigError, DataError, TandemError
from shared.evaluation.rounds import EvaluationRound, evaluation_rounds
from shared.files.output_names import METRICS_FILE
from shared.processes.mongod import Mongod
from shared.processes.waits import as_clock
from shared.redaction import redacted, shown
from shared.store import Store
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from tandem.launch import dry_run, report, summary, summary_text
from tandem.launch.cause import cause_of, full_disk
from tandem.launch.children import POLL_S, ChildDied, Children
from tandem.launch.clock import PhaseClock
from tandem.launch.display import Display
from tandem.launch.figures import StepMetrics
from tandem.launch.following import until_over
from tandem.launch.lock import RunLock
from tandem.launch.nodes import place_lines, stop_line
from tandem.launch.places import ROOT
from tandem.launch.placing import gpu_lines
from tandem.launch.policies import load_policies
from tandem.launch.preparing import prepare
from tandem.launch.refreshing import refreshed
from tandem.launch.rounds import EvalRound, import_eval, import_train, setup_seconds
from tandem.launch.services import (
    memory_lines,
    start_environments,
    start_keepers,
    start_samplers,
    start_tools,
    start_trainers,
)
from tandem.launch.settings import LaunchConfig
from tandem.launch.step_cost import costs_shown
from tandem.launch.task_checks import check_tasks, check_tools
from tandem.launch.waiting import ASK_S, signals_set, until

ALL_BUT_DATABASE = ("trainer", "sampler", "keeper", "tools", "environments")
NO_TOOLS = "none (MCP_MANAGER_URL names a server; `bundled` is the example's)"
NO_EVALUATION = "no evaluation (EVAL_FILE names held-out tasks)"


def main() -> None:
    os.chdir(ROOT)
    try:
        policies = load_policies()
    except ConfigError as exc:
        sys.stderr.write(f"tandem run: {exc}\n")
        sys.exit(2)
    forget_secrets("launch")
    config = policies[0]
    logging.basicConfig(level=logging.WARNING)
    console = Console(emoji=False)  # rich would render `:train:` in the id main:train:0:t0 as a tram
    suffix = "" if config.machines.is_main else f"_{config.machines.node}"
    launch: Launch | None = None
    try:
        if config.dry_run:
            sys.exit(dry_run.show(console, policies))
        with RunLock(config.folder / f"launch{suffix}.lock") as lock, Children(config.run, ROOT, lock.fd) as children:
            prepare(policies)
            launch = Launch(policies, children, Display(config.run, console))
            with launch.display.activity.of_process():
                status = asyncio.run(launch.until_done_or_interrupted())
        if launch.evaluated is not None:
            report.show(console, config, launch.evaluated)
        elif launch.figures is not None:
            summary_text.show(console, launch.trained, launch.figures, launch.metrics)
    except (TandemError, OSError, PyMongoError) as exc:
        console.print(f"[bold red]{type(exc).__name__}[/bold red]", soft_wrap=True)
        console.print(str(exc), markup=False, highlight=False, soft_wrap=True)
        cause = (launch and launch.cause) or full_disk(config.folder).removeprefix("; ")
        if cause:
            console.print(f"cause: {cause}", markup=False, highlight=False, soft_wrap=True)
        status = 1
    sys.exit(status)


class Launch:
    """One launch of a run: its steps in order, and the children that they start. The first policy owns the tasks."""

    def __init__(self, policies: list[LaunchConfig], children: Children, display: Display) -> None:
        self.policies = policies
        self.config = config = policies[0]
        self.children = children
        self.display = display
        self.trained = [policy for policy in policies if not policy.frozen]
        self.metrics = {policy.policy: StepMetrics(policy.policy_folder / METRICS_FILE) for policy in self.trained}
        self.clock = PhaseClock(
            config.folder / f"seconds{'' if config.machines.is_main else f'_{config.machines.node}'}.json"
        )
        self.database = config.db_connection_string or ""
        self.figures: dict[str, Any] | None = None  # the summary, at the end
        self.evaluated: EvaluationRound | None = None  # the result with `only_evaluate`
        self.cause: str | None = None  # why a child died, if one did
        display.metrics = self.metrics
        children.note = display.note

    async def until_done_or_interrupted(self) -> int:
        """Run the steps while watching children and signals. Returns the exit status; raises the error of a step or child."""
        interrupted = asyncio.Event()
        tasks = {
            asyncio.create_task(self.steps(), name="steps"),
            asyncio.create_task(self.children.watch(), name="watch"),
            asyncio.create_task(self.display.draw(), name="display"),
            asyncio.create_task(interrupted.wait(), name="interrupt"),
        }
        with signals_set(interrupted, self._force) as received:
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                first = min(done, key=lambda task: task.get_name() != "steps")
                if first.get_name() == "interrupt":
                    self.display.note(stop_line(self.config.machines, received[0]))
                    return 128 + received[0]
                if first.exception() is not None:
                    await asyncio.sleep(2 * POLL_S)
                    self.children.check()  # a child's crash is the cause; errors of the steps are its effects
                return first.result() or 0
            except TandemError as exc:
                self.display.note(f"{str(exc).splitlines()[0].partition(';')[0]}: stopping everything, details below")
                raise
            finally:
                self.cause = cause_of(self.children.children, self.config.folder)
                await self._stop(tasks)

    async def _stop(self, tasks: set[asyncio.Task[Any]]) -> None:
        self.display.phase, self.display.phase_detail = "stopping", str
        for task in tasks:
            task.cancel()
        stopping = asyncio.to_thread(self.children.stop)  # meanwhile: a step may wait for a database that died
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
        try:
            self.clock.end()
        except DataError as exc:  # a full disk: not why the run ends
            self.display.note(str(exc))

    def _force(self) -> None:
        self.children.force = True

    # ---------------------------------------------------------------- the steps

    async def steps(self) -> int:
        config = self.config
        self.clock.record("setup", setup_seconds(Path(sys.prefix)))
        self.clock.begin("start")
        machine = place_lines(config.machines, config.derived, config.address)
        for line in [*machine, *gpu_lines(self.policies), *memory_lines(self.policies)]:
            self.display.note(line)
        await self.start_database()
        async with (
            Store.open(self.database, config.run) as store,
            refreshed(self.display, self.children, self.metrics, store, self.config.folder),
            costs_shown(store, self.policies, self.display.note),
        ):
            if config.machines.is_main and await self.is_finished(store):
                return await self.finish(store)
            demands = await asyncio.to_thread(check_tasks, config, self.display.note) if config.machines.is_main else []
            tools_url = await start_tools(config, self.children)
            no_tools = NO_TOOLS if config.num_samplers else "none here, since NUM_SAMPLERS is 0"
            self.display.note(f"tools: {redacted(tools_url) if tools_url else no_tools}")
            await check_tools(config, tools_url, demands, self.display.note)
            served = await start_environments(config, self.children, self.database)
            if served:
                self.display.note(served)
            start_keepers(self.policies, self.children, self.database)
            start_samplers(self.policies, self.children, self.database, tools_url)
            if not config.only_evaluate:
                self.display.trainers = start_trainers(self.policies, self.children, self.database)
            if not config.machines.is_main:
                return await self.follow(store)
            if config.has_evaluation:
                await import_eval(store, config)
                await self.evaluate(store, 0, "eval_before")
            else:
                self.display.note(NO_EVALUATION)
            if not config.only_evaluate:
                await self.train(store)
                for version in await self._still_to_evaluate(store):
                    await self.evaluate(store, version, "eval_after")
            self.clock.end()
            self.children.check()
            await asyncio.to_thread(self.children.stop, ALL_BUT_DATABASE)  # for the last metrics
            return await self.finish(store)

    async def is_finished(self, store: Store) -> bool:
        """Whether only the summary remains to be shown. False if in doubt: every step can be repeated."""
        for config in self.trained:
            metrics = self._read_metrics(config.policy)
            last_step = 0 if config.only_evaluate else config.trainer_settings.get("max_steps", int)
            if last_step is None or metrics.last_step < last_step:
                return False
        if not self.config.has_evaluation:
            return True
        await import_eval(store, self.config)  # the file may have new tasks
        versions = {0, *await self._still_to_evaluate(store)}
        return all([await EvalRound(store, self.config.policy, version).is_complete() for version in versions])

    async def finish(self, store: Store) -> int:
        """Write and print the summary or report from the store and the metrics."""
        rounds = await evaluation_rounds(store, self.config.policy)
        if self.config.only_evaluate:
            self.evaluated = rounds[0]
            await asyncio.to_thread(report.write, self.config, self.evaluated, self.clock.seconds)
            return 0
        for policy in self.metrics:
            self._read_metrics(policy)
        self.figures = await summary.summarize(store, self.trained, self.metrics, rounds, self.clock.seconds)
        await asyncio.to_thread(summary.write, self.config, self.figures, self.metrics)
        summary.check_learning(self.config, self.metrics)
        return 0

    async def _still_to_evaluate(self, store: Store) -> list[int]:
        """Versions with an unfinished round, in order, and the newest; empty without held-out tasks."""
        if not self.config.has_evaluation:
            return []
        newest = await store.versions.newest(self.config.policy)
        under_way = await store.evaluation.open_versions(self.config.policy)
        return sorted({*under_way, 0 if newest is None else newest.version})

    async def start_database(self) -> None:
        if self.config.db_connection_string is None:
            server = Mongod(self.config.folder / "mongodb")
            await asyncio.to_thread(self.children.start_mongod, server)
            self.database = server.connection_string
            self.display.note(f"MongoDB: {shown(self.database)} database {self.config.run} (open it with Compass)")

    async def evaluate(self, store: Store, version: int, phase: str) -> None:
        """Play the held-out tasks with one version, unless already done."""
        played = EvalRound(store, self.config.policy, version)
        if not await played.is_complete():
            self.clock.begin("start")
            limited = all(policy.engine_urls or policy.starts_engine for policy in self.policies)
            limit_s = self.config.start_timeout_s if limited else math.inf  # other machines may come later
            which = f"an engine that serves version {version}"
            limit = f"at most {as_clock(limit_s)} (start_timeout_s)" if limited else "until a machine brings one"
            self.display.begin_phase(f"waiting for an engine that serves version {version}", lambda: limit)
            why = "none has loaded it yet" if limited else "no machine has brought one yet"
            timer = PollTimer(store.signals, (Signal.SERVICES, Signal.VERSIONS), ASK_S)
            await until(self.config, which, why, lambda: self._is_served(store, version), limit_s, timer)
            self.clock.begin(phase)
            self.display.begin_phase(f"evaluating version {version}", played.progress)
            await played.play()
        self.display.note(f"held-out reward of version {version}: {await played.text()}")

    async def train(self, store: Store) -> None:
        """Queue the tasks and wait for the trainers to finish. Raises ChildDied if one stops before its last step."""
        self.clock.begin("training")
        inserted = await import_train(store, self.config)
        self.display.begin_phase(f"training ({inserted} tasks queued)" if inserted else "training")
        if inserted and self.config.machines.is_alone:  # a trainer that found none before them has ended
            self.display.trainers |= start_trainers(self.policies, self.children, self.database, self._ended())
        for policy, trainer in list(self.display.trainers.items()):
            await self.children.wait_exit(trainer)
            metrics, run = self._read_metrics(policy), await store.runs.get()
            num_steps = run.admission[policy].num_steps if run and policy in run.admission else None
            end = run.ends.get(policy) if run else None
            used_up = end is not None and end.used_up
            if num_steps is None:
                raise ChildDied(f"it never began: {trainer.crash_report()}")
            if metrics.last_step < num_steps and not used_up:
                raise ChildDied(f"stopped at step {metrics.last_step} of {num_steps}: {trainer.crash_report()}")
            why = f"; it ended {end.reason}" if end is not None and used_up else ""
            self.display.note(f"trained {self._steps_text(policy)}{why}")

    def _ended(self) -> list[str]:
        """Policies whose trainers have ended well."""
        trainers = self.display.trainers
        return [policy for policy, trainer in trainers.items() if trainer.returncode == 0]

    def _steps_text(self, policy: str) -> str:
        whose = f" of policy {policy}" if len(self.policies) > 1 else ""
        return f"{self.metrics[policy].last_step} steps{whose}"

    async def follow(self, store: Store) -> int:
        """On machines other than the first: wait until the trainers and the last evaluation have finished."""
        self.display.begin_phase("working for the run" if self.config.machines.join else "working for machine 0")
        if self.config.only_evaluate:
            await EvalRound(store, self.config.policy, 0).wait()
            return 0
        for trainer in self.display.trainers.values():
            await self.children.wait_exit(trainer)
        self.display.note(await until_over(store, self.config, self.display.note))
        return 0

    # ---------------------------------------------------------------- queries

    async def _is_served(self, store: Store, version: int) -> bool:
        """Whether an engine of the tasks' owner serves `version`, and each other policy has one with its newest weights."""
        for config in self.policies:
            newest = await store.versions.newest(config.policy)
            announced = version if newest is None else newest.version
            expected = version if config is self.config else 0 if config.frozen else announced
            services = await store.services.live(config.policy)
            if not any(s.status == ServiceStatus.UP and s.version == expected for s in services):
                return False
        return True

    def _read_metrics(self, policy: str) -> StepMetrics:
        self.metrics[policy].read()
        return self.metrics[policy]


if __name__ == "__main__":
    run_command(main)
