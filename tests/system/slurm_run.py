"""A run under a real Slurm, preempted, grown and shrunk: python -m tests.system.slurm_run (needs root and slurm-wlm; minutes).

deploy/slurm/submit submits a trainer over two nodes and an array of two workers. A job of a partition with priority takes the
place of one worker: it drains, is requeued and comes back. An array of one more worker is submitted, and cancelled. The workers
leave when the trainer has ended. The end is the audit: no slot lost, none counted twice.
"""

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.system.processes import PATIENT
from tests.system.slurm_cluster import CPUS, SlurmCluster, is_installed
from tests.system.watch import CheckFailed, Watch

ROOT = Path(__file__).parents[2]
RUN = "slurm-check"
PATIENCE_S = 1200.0
FLAGS = ["--groups_per_step=4", "--save_steps=2", "--lease_s=10", "--renew_s=2"]


class SlurmCheck:
    def __init__(self, cluster: SlurmCluster, store: Store, database: str, steps: int, engine: str) -> None:
        self.cluster = cluster
        self.store = store
        self.database = database
        self.engine = ["--engine", engine] if engine else []
        self.flags = [*FLAGS, f"--max_steps={steps}"]
        self.watch = Watch(store, lambda: f"{cluster.ask('squeue')}\n{logs()}", PATIENCE_S)

    def submit(self, *options: str) -> list[str]:
        """The ids of the submitted jobs."""
        given = {"DB_CONNECTION_STRING": self.database, "TRAIN_FILE": "assets/example/train.jsonl"}
        given |= {"MCP_MANAGER_URL": "bundled", "NUM_PROCESSES": "1"} | PATIENT
        command = ["deploy/slurm/submit", RUN, *options, *self.engine, "--", *self.flags]
        done = subprocess.run(
            command, cwd=ROOT, env=self.cluster.environment | given, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CheckFailed(f"{command}: {done.stderr}")
        return re.findall(r"Submitted batch job (\d+)", done.stdout)

    async def until(self, what: str, ask: Callable[[], bool]) -> None:
        await self.watch.until(what, lambda: asyncio.to_thread(ask))

    def state(self, job: str) -> str:
        return self.cluster.job(job).get("JobState", "none")


def logs() -> str:
    paths = sorted((ROOT / "logs").glob("slurm-tandem-*.out"))
    return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in paths)


async def scenario(check: SlurmCheck) -> None:
    cluster = check.cluster
    trainer, array = check.submit(
        *("--trainer-nodes", "2", "--workers", "2", "--trainer-args", "--partition=high"),
        *("--worker-args", "--partition=low --export=ALL,NUM_SAMPLERS=1"),
    )
    check.watch.say(f"submitted the trainer as job {trainer} and two workers as array {array}")
    await check.watch.until_step(1)
    worker = f"{array}_0"
    node = cluster.job(worker)["NodeList"]
    blocker = cluster.ask(
        *("sbatch", "--parsable", "--partition=high", f"--nodelist={node}", f"--cpus-per-task={CPUS - 1}"),
        *("--output=/dev/null", "--wrap", "sleep 20"),
    ).strip()
    check.watch.say(
        f"job {blocker} of partition high asks for {CPUS - 1} of the {CPUS} CPUs of {node}, where {worker} runs"
    )
    await check.until("the preemption", lambda: check.state(blocker) in ("RUNNING", "COMPLETED"))
    check.watch.say(f"{worker} was preempted: it is {check.state(worker)}, job {blocker} {check.state(blocker)}")
    await check.until("the requeued worker", lambda: cluster.job(worker).get("Restarts") == "1")
    await check.until("the requeued worker", lambda: check.state(worker) == "RUNNING")
    check.watch.say(f"{worker} runs again, on {cluster.job(worker)['NodeList']}")
    (more,) = check.submit("--trainer-nodes", "0", "--workers", "1", "--worker-args", "--partition=low")
    await check.until("one more worker", lambda: check.state(f"{more}_0") == "RUNNING")
    await check.watch.until_step(await check.watch.step() + 2)
    before = time.monotonic()
    cluster.ask("scancel", f"{more}_0")
    await check.until("its end", lambda: check.state(f"{more}_0") == "CANCELLED")
    check.watch.say(
        f"array {more}, one more worker, came and was cancelled: its end took {time.monotonic() - before:.1f} s"
    )
    await check.until("the trainer's end", lambda: check.state(trainer) not in ("RUNNING", "PENDING", "COMPLETING"))
    check.watch.say(f"the trainer is {check.state(trainer)}, exit code {cluster.job(trainer)['ExitCode']}")
    for task in (f"{array}_0", f"{array}_1"):
        await check.until("the workers' end", lambda task=task: check.state(task) not in ("RUNNING", "COMPLETING"))  # type: ignore[misc]  # a lambda with a default
    jobs = {name: cluster.job(name) for name in (trainer, f"{array}_0", f"{array}_1")}
    check.watch.say(f"{ {name: (job['JobState'], 'restarts ' + job['Restarts']) for name, job in jobs.items()} }")
    if any(job["JobState"] != "COMPLETED" for job in jobs.values()):
        raise CheckFailed(logs())


async def run(folder: Path, steps: int, engine: str) -> None:
    with Mongod(folder / "mongodb") as server, SlurmCluster(folder / "slurm") as cluster:
        database = server.connection_string
        async with Store.open(database, RUN) as store:
            check = SlurmCheck(cluster, store, database, steps, engine)
            check.watch.say("slurmctld and two slurmd answer")
            await scenario(check)
            await check.watch.audit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--engine", default="", help="the workers' (default: as the launcher chooses)")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not is_installed():
        sys.exit("this needs root, and Slurm's and munge's daemons (Debian: slurm-wlm)")
    folder = Path(tempfile.mkdtemp(prefix="tandem-slurm-"))
    try:
        asyncio.run(run(folder, arguments.steps, arguments.engine))
    except CheckFailed as exc:
        sys.exit(f"FAILED: {exc}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(ROOT / "output" / RUN, ignore_errors=True)
        for path in (*(ROOT / "logs").glob(f"{RUN}_*.log"), *(ROOT / "logs").glob("slurm-tandem-*.out")):
            path.unlink()


if __name__ == "__main__":
    main()
