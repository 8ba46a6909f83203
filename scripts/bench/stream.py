"""How fast the trainer's stream is: from the database to a packed batch, and where its time goes.

    python -m scripts.bench.stream [--workloads demo,agent] [--ranks 1,4] [--steps 4] [--json FILE] [--quick]

A real mongod (embedded, its own process), filled with settled groups of 8 records; no model is computed. Workloads:

    demo    about what the bundled example records: up to 3 turns of 6 to 10 sampled tokens, prompts of 60; 16 groups a step
    agent   10 turns of 500 sampled tokens, tool results of 200, a prompt of 1,000; 4 groups a step

Parts:

    stages  one process: CPU and wall time a record of each stage, one after the other
    ranks   whole steps of as many processes (gloo): records/s from the database to packed rows, CPU of all ranks, and how long
            `next_batch` takes with and without prefetching while a step of --step-s seconds sleeps in the place of computing
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from scripts.bench.results import add_json, parsed, show, write_json
from shared.documents import DBRecordData, DispatchedSamplingTask, SampledResponse, record_id, task_id
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.run import Admission
from shared.documents.states import DispatchStatus
from shared.names import TRAIN_SPLIT
from shared.processes.interrupt import run_command
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from shared.tokens.flatten import data_fields, digest, flatten, tree_of
from trainer.data.stream import RecordStream
from trainer.process.parallel import end_process, parallel_session
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig
from trainer.trees.packing import pack
from trainer.trees.staleness import Staleness
from trainer.trees.tree import merge

ROOT = Path(__file__).parents[2]
GROUP_SIZE = 8
CHILD_TIMEOUT_S = 500.0
Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    turns: tuple[int, int]
    reply: tuple[int, int]
    tool_result: int
    prompt: int
    groups_per_step: int
    vocabulary: int
    max_tokens_per_row: int
    text: int  # characters stored with each sampled token, which the trainer must not fetch


WORKLOADS = {
    "demo": Workload((1, 3), (6, 10), 12, 60, 16, 400, 2048, 3),
    "agent": Workload((10, 10), (500, 500), 200, 1000, 4, 150_000, 65_536, 4),
}


# ---------------------------------------------------------------------- what is read


def make_record(
    rng: np.random.Generator, workload: Workload, name: str, prompt: list[int]
) -> list[DispatchedSamplingTask]:
    """An episode whose context only grows."""
    dispatches: list[DispatchedSamplingTask] = []
    length = 0
    for turn in range(int(rng.integers(workload.turns[0], workload.turns[1] + 1))):
        reply = int(rng.integers(workload.reply[0], workload.reply[1] + 1))
        new = prompt if turn == 0 else rng.integers(0, workload.vocabulary, workload.tool_result).tolist()
        text = "x" * (workload.text * reply)
        response = SampledResponse(
            text=text,
            message={"role": "assistant", "content": text},
            output_ids=pack_ints(rng.integers(0, workload.vocabulary, reply).tolist()),
            output_logprobs=pack_floats(-rng.random(reply).astype(np.float32)),
            finish_reason="stop",
        )
        dispatches.append(
            DispatchedSamplingTask(
                id=f"{name}:{turn}",
                record=name,
                turn=turn,
                parent=f"{name}:{turn - 1}" if turn else None,
                shared_length=length,
                prompt_ids=pack_ints(new),
                messages=[{"role": "tool", "content": "x" * (workload.text * len(new))}],
                tools_hash="",
                sampling_params={"temperature": 1.0, "max_new_tokens": workload.reply[1]},
                response=response,
                weight_versions=[(0, reply)],
                status=DispatchStatus.COMPLETED,
            )
        )
        length += len(new) + reply
    return dispatches


async def fill(store: Store, workload: Workload, groups: int) -> None:
    rng = np.random.default_rng(0)
    await store.versions.announce("main", 0, "version-0", {})
    for seq in range(groups):
        task = task_id("main", TRAIN_SPLIT, 0, f"t{seq}")
        prompt = rng.integers(0, workload.vocabulary, workload.prompt).tolist()
        group: list[DBRecordData] = []
        dispatches: list[DispatchedSamplingTask] = []
        for k in range(GROUP_SIZE):
            rid = record_id(task, k, 1)
            episode = make_record(rng, workload, rid, prompt)
            tree = flatten(rid, episode, {d.id: float(k % 2) - 0.5 for d in episode})
            group.append(
                DBRecordData(
                    id=rid, record=rid, task=task, group_size=GROUP_SIZE, seq=seq, policy="main", split=TRAIN_SPLIT,
                    source="bench",
                    reward=float(k % 2), **data_fields(tree),
                )
            )  # fmt: skip
            dispatches += episode
        await store.database["dispatched_sampling_tasks"].insert_many([d.to_mongo() for d in dispatches])
        await store.data.write_group(group)


# ---------------------------------------------------------------------- stages


def stages(bridge: StoreBridge, name: str, workload: Workload, server: psutil.Process, repeats: int) -> list[Row]:
    """Each stage on the same groups, `repeats` times; the fastest counts (of the server the mean)."""
    store = bridge.store
    found = bridge(store.data.ready_groups("main", workload.groups_per_step))
    ids = [rid for group in found for rid in sorted(group["records"])]  # of one policy: the records' own
    data = bridge(store.data.load(ids))
    tokens = bridge(store.records.tokens_of(ids))
    trees = [tree_of(d, tokens[d.id]) for d in data]
    grouped = [trees[i : i + GROUP_SIZE] for i in range(0, len(trees), GROUP_SIZE)]
    merged = [merge(group) for group in grouped]
    staleness = Staleness(None)
    work: dict[str, Callable[[], object]] = {
        "query ready groups": lambda: bridge(store.data.ready_groups("main", 4 * workload.groups_per_step)),
        "read record data": lambda: bridge(store.data.load(ids)),
        "read tokens": lambda: bridge(store.records.tokens_of(ids)),
        "flatten and check digest": lambda: [tree_of(d, tokens[d.id]) for d in data],
        "of that the digest": lambda: [digest(tree) for tree in trees],
        "merge": lambda: [merge(group) for group in grouped],
        "pack": lambda: pack([tree.at(staleness) for tree in merged], workload.max_tokens_per_row),
    }
    rows: list[Row] = []
    for stage, do in work.items():
        times = [timed(do, server) for _ in range(repeats)]
        wall, cpu = (min(column) * 1e3 / len(ids) for column in list(zip(*times, strict=True))[:2])
        server_cpu = sum(t[2] for t in times) * 1e3 / len(ids) / repeats  # its clock ticks every 10 ms
        costs = {"ms/record": wall, "CPU ms/record": cpu, "mongod CPU ms/record": server_cpu}
        rows.append({"workload": name, "stage": stage} | costs)
    whole = [row for row in rows if not row["stage"].startswith("of that")]
    rows.append({"workload": name, "stage": "all"} | {k: sum(row[k] for row in whole) for k in list(whole[0])[2:]})
    return rows


def timed(do: Callable[[], object], server: psutil.Process) -> tuple[float, float, float]:
    """(wall, CPU of this process, CPU of the server) in seconds."""
    before, cpu, wall = server.cpu_times(), time.process_time(), time.perf_counter()
    do()
    wall, cpu, after = time.perf_counter() - wall, time.process_time() - cpu, server.cpu_times()
    return wall, cpu, (after.user + after.system) - (before.user + before.system)


# ---------------------------------------------------------------------- whole steps


def child() -> None:
    """One rank: take and commit steps, say what they cost. Started by `ranks`, with the order on standard input."""
    order = json.loads(sys.stdin.read())
    names = ("run", "groups_per_step", "max_tokens_per_row", "prefetch")
    config = TrainerConfig.model_validate(
        {name: order[name] for name in names}
        | {"db_connection_string": order["uri"], "model_name_or_path": ".", "report_to": ["none"]}
        | {"max_trained_count": 1_000_000, "retrained_interval": 2, "max_staleness": 10_000, "stale_data": "keep"}
    )
    with parallel_session("cpu", 1) as parallel, StoreBridge(order["uri"], order["run"]) as bridge:
        trainer_generation = 1
        if parallel.is_main:
            admission = Admission(groups_per_step=config.data.groups_per_step, max_staleness=0)
            trainer_generation = bridge(bridge.store.runs.start_trainer("main", admission))
        trainer_generation = int(parallel.broadcast_object(trainer_generation))
        cpu = time.process_time()
        with RecordStream(bridge, config, parallel, trainer_generation=trainer_generation) as stream:
            steps = [take(stream, step, order["step_s"]) for step in range(1, order["steps"] + 1)]
    metrics = {key: [m[key] for m in steps[1:]] for key in ("time/wait_s", "time/load_s", "data/prefetched_fraction")}
    if parallel.is_main:
        sys.stdout.write(json.dumps(metrics | {"records": steps[0]["data/records"]}) + "\n")
    sys.stdout.write(f"CPU {time.process_time() - cpu}\n")
    end_process(0)


def take(stream: RecordStream, step: int, step_s: float) -> dict[str, float]:
    batch = stream.next_batch(step)
    assert batch is not None
    time.sleep(step_s)  # simulates the optimizer step, during which the stream reads ahead
    stream.commit(step)
    return batch.metrics


def ranks(
    uri: str, run: str, name: str, workload: Workload, count: int, prefetch: bool, steps: int, step_s: float
) -> Row:
    order = {
        "uri": uri, "run": run, "steps": steps + 1, "step_s": step_s, "prefetch": prefetch,
        "groups_per_step": workload.groups_per_step, "max_tokens_per_row": workload.max_tokens_per_row,
    }  # fmt: skip
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    outputs: list[str] = []
    with children(count, address) as processes:
        for process in processes:
            assert process.stdin
            process.stdin.write(json.dumps(order))
            process.stdin.close()
            process.stdin = None
        for process in processes:
            out, _ = process.communicate(timeout=CHILD_TIMEOUT_S)
            if process.returncode:
                raise SystemExit(f"a rank ended with status {process.returncode}")
            outputs.append(out)
    metrics = next(json.loads(line) for line in "".join(outputs).splitlines() if line.startswith("{"))
    cpu = sum(float(line.split()[1]) for line in "".join(outputs).splitlines() if line.startswith("CPU "))
    load_s, wait_s = float(np.median(metrics["time/load_s"])), float(np.median(metrics["time/wait_s"]))
    return {
        "workload": name,
        "ranks": count,
        "prefetch": prefetch,
        "records/step": metrics["records"],
        "step_s": step_s,
        "wait_s": wait_s,
        "load_s": load_s,
        "records/s": metrics["records"] / (wait_s + load_s),
        "CPU ms/record": cpu * 1e3 / (metrics["records"] * (steps + 1)),
        "read ahead": float(np.mean(metrics["data/prefetched_fraction"])),
    }


@contextmanager
def children(count: int, address: dict[str, str]) -> Iterator[Sequence["subprocess.Popen[str]"]]:
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(count):
            environment = {**os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "scripts.bench.stream", "--child"]
            processes.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()


# ---------------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="demo,agent", help="default: %(default)s")
    parser.add_argument("--ranks", default="1,4", help="processes of the second part (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="measured of each row (default: %(default)s)")
    parser.add_argument("--step-s", type=float, default=1.0, help="a step's computing (default: %(default)s s)")
    parser.add_argument("--repeats", type=int, default=3, help="of each stage (default: %(default)s)")
    add_json(parser)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parsed(parser, workloads="demo", ranks="1", steps=1, step_s=0.0, repeats=1)
    if args.child:
        child()
    answer: dict[str, list[Row]] = {"stages": [], "ranks": []}
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder) / "mongodb") as mongod:
        assert mongod.process
        server = psutil.Process(mongod.process.pid)
        for name in args.workloads.split(","):
            workload, run = WORKLOADS[name], f"bench-{name}"
            with StoreBridge(mongod.connection_string, run) as bridge:
                bridge(fill(bridge.store, workload, 2 * workload.groups_per_step), 600)
                answer["stages"] += stages(bridge, name, workload, server, args.repeats)
            show([row for row in answer["stages"] if row["workload"] == name], "stages", decimals=3)
            for count in (int(n) for n in args.ranks.split(",") if n):
                for prefetch in (False, True):
                    with StoreBridge(mongod.connection_string, run) as bridge:  # without the marks of the row before
                        bridge(bridge.store.data.rewind("main", 0, max_trained_count=1))
                    row = ranks(mongod.connection_string, run, name, workload, count, prefetch, args.steps, args.step_s)
                    answer["ranks"].append(row)
            show([row for row in answer["ranks"] if row["workload"] == name], "ranks", decimals=3)
    write_json(args.json, answer)


if __name__ == "__main__":
    run_command(main)
