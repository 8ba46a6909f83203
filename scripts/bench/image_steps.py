"""What shared images save in a training step: the same episodes, whose groups share a picture, or with a picture each.

    python -m scripts.bench.image_steps                 4 tasks of 8 episodes; about three minutes
    python -m scripts.bench.image_steps --quick         2 tasks of 2 episodes, in seconds: no measurement

shared   the episodes of a task have its picture: as many distinct images as tasks
own      as many tokens, a picture of its own in every episode

Both are computed by turns, by one Qwen2.5-VL with random weights (a tower of 8 layers, width 320; 4 layers of text, width 256) on
one thread. Every turn has new pictures, since features of a frozen tower are kept. `read` is from digests in an mongod to
the arrays for the tower, with decoder processes; CPU seconds are of all processes, medians of the turns.
"""

import hashlib
import io
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch
from PIL import Image
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.image_inputs import ours
from scripts.bench.processes import cpu_s
from shared.documents.images import ImageFile
from shared.images.families import Family, family_of
from shared.processes.mongod import Mongod
from shared.tokens.image_span import ImageSpan
from shared.tokens.record_tree import RecordTree, TreeDispatch
from trainer.data.images import RecordImages, first_records, inputs_of
from trainer.losses import Denominators, LossConfig
from trainer.process.parallel import parallel_session
from trainer.process.store_bridge import StoreBridge
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner
from trainer.step.opening import open_learner
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import pack
from trainer.trees.tree import merge

KINDS = ("shared", "own")
QUESTION, REPLY = 32, 64  # tokens
MAX_TOKENS_PER_ROW = 4096
VOCABULARY, PLACEHOLDER, ORDINARY = 512, 1, 8  # from ORDINARY on ids stand for nothing


def measure(options: Options) -> Tables:
    folder = write_model(options.folder / "model")
    family = family_of(folder)
    assert family is not None
    with (
        Mongod(options.folder / "mongod") as mongod,
        StoreBridge(mongod.connection_string, "image-steps") as bridge,
        parallel_session("cpu", 1) as parallel,
    ):
        learner = open_learner(folder, LossConfig(), OptimizerConfig(), parallel)
        turns: dict[str, list[Row]] = {kind: [] for kind in KINDS}
        for number in range(options.repeats + 1):
            for kind in KINDS:
                groups = episodes(bridge, family, kind, number, options)
                turns[kind].append(step(learner, RecordImages(bridge, folder), groups))
    rows = [{"pictures": kind, **medians(turns[kind][1:])} for kind in KINDS]  # the first turn warms up
    shared, own = rows
    names = ("read CPU s", "step CPU s", "tokens", "arrays MiB")
    return {"one step": rows, "own / shared": [{name: own[name] / shared[name] for name in names}]}


def write_model(folder: Path) -> Path:
    """The files that `family_of` and the trainer read."""
    ours("qwen2_5_vl", folder)
    vision: dict[str, Any] = {
        "depth": 8,
        "hidden_size": 320,
        "intermediate_size": 864,
        "num_heads": 5,
        "patch_size": 14,
    }
    vision |= {"window_size": 112, "fullatt_block_indexes": [3, 7], "out_hidden_size": 256}
    text = {"vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    text |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
    ids = {"image_token_id": PLACEHOLDER, "video_token_id": 2, "vision_start_token_id": 3, "vision_end_token_id": 4}
    config: Any = Qwen2_5_VLConfig(text_config={**text, "rope_parameters": rope}, vision_config=vision, **ids)  # type: ignore[arg-type]  # `ids` has the tokens' numbers alone
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(config).float().save_pretrained(folder)
    return folder


def episodes(bridge: StoreBridge, family: Family, kind: str, number: int, options: Options) -> list[list[RecordTree]]:
    """Groups whose pictures are in the store."""
    groups = []
    for task in range(options.tasks):
        files = [
            picture(options.side, [KINDS.index(kind), number, task, 0 if kind == "shared" else episode])
            for episode in range(options.episodes)
        ]
        bridge(bridge.store.images.keep(files))
        question = np.random.default_rng([number, task]).integers(ORDINARY, VOCABULARY, QUESTION)
        groups.append([record(family, f"{task}:{at}", file, question, at) for at, file in enumerate(files)])
    return groups


def picture(side: int, seed: list[int]) -> ImageFile:
    """Smooth, with noise, as a photograph."""
    rows, columns = np.mgrid[0:side, 0:side] * (255 / side)
    noise = np.random.default_rng(seed).integers(0, 16, (side, side, 3))
    rgb = np.stack([rows, columns, (rows + columns) / 2], -1) * (239 / 255) + noise
    file = io.BytesIO()
    Image.fromarray(rgb.astype(np.uint8)).save(file, "JPEG")
    data = file.getvalue()
    return ImageFile(hashlib.sha256(data).hexdigest(), data, "JPEG", side, side)


def record(family: Family, name: str, file: ImageFile, question: npt.NDArray[np.int64], at: int) -> RecordTree:
    """The picture, the question, and a reply of its own."""
    count = family.features(file.height, file.width)
    reply = np.random.default_rng(at).integers(ORDINARY, VOCABULARY, REPLY)
    ids_N = np.concatenate([np.full(count, family.placeholder_id), question, reply]).astype(np.int32)
    n, prompt = len(ids_N), count + QUESTION
    dispatches_N = np.where(np.arange(n) < prompt, -1, 0).astype(np.int32)
    return RecordTree(
        record_id=name,
        token_ids_N=ids_N,
        parents_N=np.arange(-1, n - 1, dtype=np.int32),
        dispatches_N=dispatches_N,
        logprobs_N=np.where(dispatches_N < 0, 0, -5).astype(np.float32),
        versions_N=dispatches_N,
        dispatches=(TreeDispatch(name, 0, 1.0 if at % 2 else -1.0),),
        images=(ImageSpan(file.sha256, 0, count, family.grid(file.height, file.width)),),
    )


def step(learner: Learner, images: RecordImages, groups: list[list[RecordTree]]) -> Row:
    """As the trainer takes one: images read, groups merged and packed, one update."""
    records = [one for group in groups for one in group]
    started, wall = all_cpu_s(), time.perf_counter()
    held = images.of(records, first_records(records))
    read, read_wall = all_cpu_s(), time.perf_counter()
    trees = [merge(group) for group in groups]
    rows = [row.with_pixels(lambda digest: inputs_of(held, digest)) for row in pack(trees, MAX_TOKENS_PER_ROW)]
    counts = Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))
    learner.step_in_minibatches([Minibatch(rows, counts)])
    arrays = sum(array.nbytes for image in held.values() for array in image.inputs().values())
    return {
        "images": len(held),
        "tokens": sum(row.num_tokens for row in rows),
        "read CPU s": read - started,
        "read wall s": read_wall - wall,
        "step CPU s": all_cpu_s() - read,
        "arrays MiB": arrays / 2**20,
    }


def medians(turns: list[Row]) -> Row:
    return {name: median(turn[name] for turn in turns) for name in turns[0]}


def all_cpu_s() -> float:
    """Of this process and the decoders."""
    decoders = [child for child in psutil.Process().children() if "shared.images.worker" in child.cmdline()]
    return sum(cpu_s(pid) for pid in (os.getpid(), *(child.pid for child in decoders)))


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--tasks", type=int, default=4, help="groups of the step")
    parser.add_argument("--episodes", type=int, default=8, help="episodes of a group")
    parser.add_argument("--side", type=int, default=448, help="pixels of a picture's side")
    parser.add_argument("--repeats", type=int, default=5, help="measured turns")
    run_benchmark(parser, measure, decimals=3, tasks=2, episodes=2, side=112, repeats=1)
