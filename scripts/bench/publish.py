"""Weights from the trainer to an engine, complete, as changes, as an adapter: bytes, seconds, and whether the engine has the
same bits.

    python -m scripts.bench.publish [--model DIR] [--steps 4] [--cases float32:2e-4,lora:2e-3] [--json FILE] [--quick]

An embedded MongoDB, the trainer's learner and publisher in this process, a keeper with its local engine as child processes;
every row is a start of the trainer. A step is one AdamW update of the model (float32) by cross-entropy on bundled tasks; a case
is the type of the published weights and the learning rate; `lora`: adapters of rank 16 in all layers, published in float32.
`publish s` is the trainer's, mean over the steps; `follow s` lasts from the announcement until the keeper says that the engine
serves it (it looks every 0.05 s), and the columns after it are its phases. Bytes are those a step writes, and that a keeper
reads. The first version of a start is not counted.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
import numpy as np
import torch
from tokenizers import Tokenizer

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from shared.documents.run import Admission, InferenceService
from shared.documents.states import ServiceStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.tokens.record_tree import RecordTree, TreeDispatch
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.model import DTYPES
from trainer.process.parallel import Parallel, parallel_session
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.publish import Publisher
from trainer.publishing.weights import gather_state
from trainer.settings.config import TrainerConfig
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.step.shared_device import TrainerDevice
from trainer.trees.packing import pack
from trainer.trees.tree import merge

RUN = "bench"
EXAMPLE = Path("assets/example")
CASES = "float32:2e-4,float32:1e-6,bfloat16:2e-4,bfloat16:1e-5,bfloat16:1e-6,lora:2e-3"
LORA = {"lora_rank": 16, "lora_alpha": 32.0}  # the demo's
FOLLOW_LIMIT_S = 300.0
TASKS_PER_STEP = 64


def measure(options: Options) -> Tables:
    rows: list[Row] = []
    with (
        Mongod(options.folder / "mongodb") as mongod,
        keeper(options.model, options.folder, mongod.connection_string),
        parallel_session("cpu") as parallel,
        StoreBridge(mongod.connection_string, RUN) as bridge,
    ):
        base = {
            "run": RUN,
            "db_connection_string": mongod.connection_string,
            "model_name_or_path": options.model,
            "output_dir": options.folder,
        }
        for text in options.cases.split(","):
            kind, rate = text.split(":")
            of_case = base | {"learning_rate": float(rate)} | (LORA if kind == "lora" else {"publish_dtype": kind})
            full_bytes = None
            for mode in ("full", "delta", "adapter") if kind == "lora" else ("full", "delta"):
                config = TrainerConfig.model_validate(of_case | {"publish_mode": mode})
                row = row_of(config, bridge, parallel, options.steps)
                full_bytes = full_bytes or row["bytes"]
                rows.append({"published": kind, **row, "full / this": full_bytes / row["bytes"]})
    return {"versions": rows}


def row_of(config: TrainerConfig, bridge: StoreBridge, parallel: Parallel, steps: int) -> Row:
    """One row of the table: a start of the trainer, which withdraws what the one before had published."""
    torch.manual_seed(0)
    learner = open_learner(
        config.model.model_name_or_path,
        LossConfig(loss=LossName.CROSS_ENTROPY),
        OptimizerConfig(learning_rate=config.optimizer.learning_rate, max_steps=100),
        parallel,
        LearnerOptions(trainable=config.model.trainable(config.seed)),
    )
    start = bridge(bridge.store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=1)))
    publisher = Publisher(bridge, config, parallel, learner, TrainerDevice(bridge, config.sharing, parallel, "trainer"))
    publisher.check()
    publisher.begin(start)
    bridge(served(bridge.store), FOLLOW_LIMIT_S)
    times: list[dict[str, float]] = []
    for step in range(1, steps + 2):
        learn(learner, config.model.model_name_or_path, step)
        published = publisher.publish(step)
        announced = time.monotonic()
        service, stats = bridge(served(bridge.store), FOLLOW_LIMIT_S)
        times.append(published | stats | {"follow_s": time.monotonic() - announced})
    return summary(
        config, times[1:], same_bits(service.url, learner, parallel, config.publish.publish_dtype or config.model.dtype)
    )


@contextmanager
def keeper(model: Path, folder: Path, uri: str) -> Iterator[None]:
    """A keeper with an engine of its own."""
    command = [sys.executable, "-m", "sampler.engine.keeper", "--run", RUN, "--db_connection_string", uri]
    command += ["--model_name_or_path", str(model), "--poll_s", "0.05", "--heartbeat_s", "0.05"]
    command += ["--start_timeout_s", str(FOLLOW_LIMIT_S)]
    with (folder / "keeper.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--cache_dir", str(folder / "cache")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    except TimeoutError:
        sys.stderr.write((folder / "keeper.log").read_text(errors="replace")[-3000:])
        raise
    finally:
        process.terminate()
        process.wait(30)


async def served(store: Store) -> tuple[InferenceService, dict[str, float]]:
    """The service and its keeper's figures, once it is UP with the newest version."""
    while True:
        newest = await store.versions.newest("main")
        version = -1 if newest is None else newest.version
        services = [s for s in await store.services.live("main") if s.version == version]
        services_up = [
            w for w in await store.workers.live() if w.doing.endswith(f"{ServiceStatus.UP} version {version}")
        ]
        if services and services_up:
            return services[0], {name: float(value) for name, value in services_up[0].stats.items()}
        await asyncio.sleep(0.01)


def learn(learner: Learner, model: Path, step: int) -> None:
    """One update by the answers of the step's tasks."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    lines = (EXAMPLE / "train.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [json.loads(line) for line in lines[step * TASKS_PER_STEP : (step + 1) * TASKS_PER_STEP]]
    trees = [merge([conversation(tokenizer, task)]) for task in tasks]
    trained_T = torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees])
    learner.step(pack(trees, 1024), Denominators.count(trained_T))


def conversation(tokenizer: Tokenizer, task: dict[str, Any]) -> RecordTree:
    prompt = tokenizer.encode(task["query"]).ids
    reply = tokenizer.encode(f"<answer>{task['answer']}</answer>").ids
    sampled_N = np.array([False] * len(prompt) + [True] * len(reply))
    return RecordTree(
        record_id=task["id"],
        token_ids_N=np.array([*prompt, *reply], dtype=np.int32),
        parents_N=np.arange(-1, len(sampled_N) - 1, dtype=np.int32),
        dispatches_N=np.where(sampled_N, 0, -1).astype(np.int32),
        logprobs_N=np.zeros(len(sampled_N), dtype=np.float32),
        versions_N=np.where(sampled_N, 0, -1).astype(np.int32),
        dispatches=(TreeDispatch(task["id"], 0, 1.0),),
    )


def same_bits(url: str, learner: Learner, parallel: Parallel, dtype: str) -> bool:
    """Whether every parameter that the engine has (it computes in float32) is the published one, bit for bit."""
    with httpx.Client(base_url=url, timeout=60) as http:
        for name, tensor in gather_state(learner.causal_lm, parallel, DTYPES[dtype]).items():
            rows = http.post("/get_weights_by_name", json={"name": name, "truncate_size": 1 << 30}).json()
            served_ = torch.tensor(rows, dtype=torch.float32)
            if not torch.equal(served_.view(torch.int32), tensor.float().view(torch.int32)):
                return False
    return True


def summary(config: TrainerConfig, steps: list[dict[str, float]], equal: bool) -> Row:
    """Means over the steps."""

    def of(name: str) -> float:
        return mean(step.get(name, 0.0) for step in steps)

    return {
        "learning rate": f"{config.optimizer.learning_rate:g}",
        "mode": config.publish.publish_mode,
        "changed": f"{of('publish/changed_fraction'):.1%}" if config.publish.publish_mode == "delta" else "",
        "bytes": int(of("publish/bytes")),
        "publish s": of("publish/seconds"),
        "follow s": of("follow_s"),
        **{phase: of(f"update_{phase}_s") for phase in ("read", "copy", "apply", "verify", "engine")},
        "same bits": equal,
    }


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, default=EXAMPLE / "model")
    parser.add_argument("--steps", type=int, default=4, help="counted ones, of each run (default: %(default)s)")
    parser.add_argument("--cases", default=CASES, help="type:learning rate, … (default: %(default)s)")
    run_benchmark(parser, measure, decimals=3, steps=1, cases="lora:2e-3")
