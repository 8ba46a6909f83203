"""A fleet of samplers against one database: what a rollout costs the store, from the claim to its group's settlement.

    python -m scripts.bench.fleet [--runners 10,100,1000] [--processes 1,2,10] [--members 1] [--open 0] [--seconds 8]
                                  [--turns 3] [--tokens 50] [--turn_s 0] [--foreign PYTHON] [--json FILE] [--quick]

Each runner (`scripts.bench.fleet_runners`) plays prepared episodes with the store's verbs: claim, record, turns, score,
settlement of groups of 8. There is no engine, no rendering and no tool, so a real sampler of as many episodes asks far less
often: 1,000 episodes of 30 s are 33 rollouts/s. A row is a new run; figures are of `--seconds` in the middle of it:

    rollouts/s            what one database bears; on a machine of few cores runners and mongod compete for them
    mongod ms, runners ms processor time per rollout, of all members of a replica set and of all runners
    claim p50, p99        how long a claim takes that leases a slot, in ms
    empty claims          claims that found nothing, per rollout
    commands              by name and collection, per rollout, in a table of their own

`--turn_s 10` makes episodes last as long as real ones: rollouts/s is then what the runners ask for, and a claim's time is not
that of a queue. `--members 3` makes a replica set, `--open N` adds N open groups all of whose slots are played elsewhere: every
claim has to pass by them. Compare two versions by turns (one row of each, several times), and by processor time rather than by
wall time.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pymongo import MongoClient

from scripts.bench.fleet_runners import PROMPT, RESULT
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import ROOT, cpu_s
from scripts.bench.sampler_under_test import EXAMPLE, GROUP, new_task
from shared.documents.states import SlotStatus, TaskStatus
from shared.processes.mongod import Mongod, free_port
from shared.store import Store

REPLICA_SET = "fleet"
FILLED = 2_000  # tasks at once
ROLLOUTS_PER_S = 1_500  # more than any machine plays: so many tasks are there
FIRST_ROLLOUTS_S = 120.0
FAR = datetime(2100, 1, 1, tzinfo=UTC)


async def measure(options: Options) -> Tables:
    numbers = [int(number) for number in options.runners.split(",")]
    processes = [int(number) for number in options.processes.split(",")]
    rows: list[Row] = []
    commands: list[Row] = []
    # A transaction, as Agent Lightning's store uses them, needs a replica set.
    one_alone = options.members == 1 and options.foreign is None
    with servers(options.folder / "mongodb", 0 if one_alone else options.members) as members:
        for at, number in enumerate(numbers):
            row, by_name = await one_row(
                options, members, f"fleet-{at}", number, processes[min(at, len(processes) - 1)]
            )
            rows.append(row)
            commands += [
                {"runners": number, "command": name, "per rollout": count} for name, count in by_name.most_common()
            ]
        foreign = [
            await asyncio.to_thread(foreign_row, options, members, number, in_memory=in_memory)
            for number in numbers
            for in_memory in (True, False)
            if options.foreign is not None
        ]
    return {"rollouts": rows, "commands": commands, "agentlightning": foreign}


async def one_row(
    options: Options, members: Sequence[Mongod], run: str, number: int, processes: int
) -> tuple[Row, Counter[str]]:
    address = address_of(members)
    async with Store.open(address, run) as store:
        await fill(store, options.open, number // GROUP + int(ROLLOUTS_PER_S * (options.seconds + 2)) // GROUP)
        with ExitStack() as stack:
            fleet = [
                stack.enter_context(runners(options, address, run, number // processes, at)) for at in range(processes)
            ]
            await played(fleet, number, FIRST_ROLLOUTS_S)
            await figures(fleet)
            used, began = cpu(members, fleet), time.monotonic()
            await asyncio.sleep(options.seconds)
            done, used_after, took_s = await figures(fleet), cpu(members, fleet), time.monotonic() - began
        await store.client.drop_database(run)
    rollouts = done["rollouts"]
    commands = Counter({name: count / rollouts for name, count in done["commands"].items()})
    return {
        "runners": number,
        "processes": processes,
        "open groups": options.open,
        "rollouts/s": rollouts / took_s,
        "settled/s": GROUP * done["settled"] / took_s,
        "mongod ms": (used_after[0] - used[0]) / rollouts * 1e3,
        "runners ms": (used_after[1] - used[1]) / rollouts * 1e3,
        "commands": sum(commands.values()),
        "claim p50": float(np.percentile(done["claims_ms"], 50)),
        "claim p99": float(np.percentile(done["claims_ms"], 99)),
        "empty claims": done["empty_claims"] / rollouts,
    }, commands


async def fill(store: Store, open_groups: int, groups: int) -> None:
    """`open_groups` of which every slot is leased for years, then `groups` new ones."""
    for first in range(0, open_groups + groups, FILLED):
        await store.tasks.insert_new([new_task(seq) for seq in range(first, min(first + FILLED, open_groups + groups))])
    leased = {"status": TaskStatus.RUNNING.value, "free_at": FAR, "slots.$[].status": SlotStatus.LEASED.value}
    await store.database["tasks"].update_many(
        {"seq": {"$lt": open_groups}}, {"$set": leased | {"slots.$[].free_at": FAR}}
    )


# ---------------------------------------------------------------------- processes


@contextmanager
def servers(folder: Path, members: int) -> Iterator[list[Mongod]]:
    """Members of a replica set; 0: one server without."""
    options = ("--replSet", REPLICA_SET, "--oplogSize", "200") if members else ()
    with ExitStack() as stack:
        found = [
            stack.enter_context(Mongod(folder / str(n), port=free_port() if options else 0, options=options))
            for n in range(members or 1)
        ]
        if options:
            initiate(found)
        yield found


def initiate(members: Sequence[Mongod]) -> None:
    hosts = [{"_id": n, "host": f"127.0.0.1:{member.port}"} for n, member in enumerate(members)]
    with MongoClient[dict[str, Any]](members[0].connection_string) as client:
        client.admin.command({"replSetInitiate": {"_id": REPLICA_SET, "members": hosts}})


@contextmanager
def runners(options: Options, address: str, run: str, places: int, at: int) -> Iterator["subprocess.Popen[str]"]:
    config = {
        "run": run,
        "db_connection_string": address,
        "model_name_or_path": str(EXAMPLE),
        "max_concurrent_episodes": places,
    }
    episode = {"turns": options.turns, "tokens": options.tokens, "turn_s": options.turn_s}
    settings = json.dumps({"config": config, "episode": episode})
    with (options.folder / f"runners{at}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "scripts.bench.fleet_runners", settings],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=60)


def address_of(members: Sequence[Mongod]) -> str:
    if not members[0].options:
        return members[0].connection_string
    return f"mongodb://{','.join(f'127.0.0.1:{m.port}' for m in members)}/?replicaSet={REPLICA_SET}"


def foreign_row(options: Options, members: Sequence[Mongod], number: int, *, in_memory: bool) -> Row:
    """Of `scripts.bench.fleet_foreign`, in one process."""
    settings = {
        "address": "" if in_memory else address_of(members),
        "database": f"foreign-{number}",
        "places": number,
        "turns": options.turns,
        "tokens": options.tokens,
        "prompts": [PROMPT, RESULT],
        "rollouts": number + int(ROLLOUTS_PER_S * (options.seconds + 2)),
        "seconds": options.seconds,
    }
    command = [str(options.foreign), "-m", "scripts.bench.fleet_foreign", json.dumps(settings)]
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else its import asks GitHub
    with (options.folder / "foreign.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        try:
            _line_of(process)
            used = cpu(members, [])[0]
            figures = json.loads(_line_of(process))
        finally:
            process.terminate()
            process.communicate(timeout=60)
    rollouts = max(1, figures["rollouts"])
    return {
        "runners": number,
        "store": "in memory" if in_memory else "MongoDB",
        "rollouts/s": figures["rollouts"] / figures["took_s"],
        "mongod ms": 0.0 if in_memory else (cpu(members, [])[0] - used) / rollouts * 1e3,
        "runners ms": figures["cpu_s"] / rollouts * 1e3,
        "claim p50": float(np.percentile(figures["claims_ms"] or [float("nan")], 50)),
        "claim p99": float(np.percentile(figures["claims_ms"] or [float("nan")], 99)),
    }


async def played(fleet: Sequence["subprocess.Popen[str]"], rollouts: int, timeout_s: float) -> None:
    """Until so many rollouts have ended."""
    deadline, count = time.monotonic() + timeout_s, 0
    while (count := count + (await figures(fleet))["rollouts"]) < rollouts:
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out: fewer than {rollouts} rollouts in {timeout_s:g} s")
        await asyncio.sleep(0.2)


async def figures(fleet: Sequence["subprocess.Popen[str]"]) -> dict[str, Any]:
    """Since the last call, summed over all processes."""
    total: dict[str, Any] = {"rollouts": 0, "settled": 0, "empty_claims": 0, "claims_ms": [], "commands": Counter()}
    for each in await asyncio.gather(*(asyncio.to_thread(_ask, process) for process in fleet)):
        for name in total:
            total[name] += Counter(each[name]) if name == "commands" else each[name]
    return total


def _ask(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return dict(json.loads(_line_of(process)))


def _line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"runners ended with status {process.wait(60)}; --keep FOLDER keeps their logs")
    return line


def cpu(members: Sequence[Mongod], fleet: Sequence["subprocess.Popen[str]"]) -> tuple[float, float]:
    """Seconds of processor time of the servers, and of the runners."""
    return sum(cpu_s(m.process.pid) for m in members if m.process), sum(cpu_s(process.pid) for process in fleet)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--runners", default="10,100", help="at once, a row each (default: %(default)s)")
    parser.add_argument(
        "--processes", default="1", help="of runners, for each row; the last counts on (default: %(default)s)"
    )
    parser.add_argument(
        "--members", type=int, default=1, help="1: a standalone server; 3: a replica set (default: %(default)s)"
    )
    parser.add_argument(
        "--foreign",
        type=Path,
        help="Python of an environment with agentlightning: also rows of its store, on a replica set",
    )
    parser.add_argument("--open", type=int, default=0, help="groups that are played elsewhere (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of an episode (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=50, help="of a reply (default: %(default)s)")
    parser.add_argument(
        "--turn_s",
        type=float,
        default=0.0,
        help="mean duration of a turn; 0: replies are there at once (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of a row (default: %(default)s)")
    run_benchmark(parser, measure, width=200, runners="16", processes="2", seconds=0.3)
