"""Supervised fine-tuning: conversations, or records of a run, in, a Hugging Face directory out, on the way that records take in
reinforcement learning.

    train_file | run ─▶ samples of a step ─▶ merge prefixes ─▶ pack rows ─▶ Learner.step (CrossEntropy) ─▶ metrics ─▶ checkpoint
                        └─ prepared one step ahead in a thread ─┘

    python -m trainer.sft --model_name_or_path MODEL --train_file data.jsonl --output_dir output/sft --max_steps 500
    python -m trainer.sft --model_name_or_path MODEL --run RUN --db_connection_string URI --min_score 1 --output_dir output/rft
    accelerate launch --config_file assets/fsdp2.yml --num_processes 2 -m trainer.sft ...

Promise: the step's loss and gradient are those of its samples, for any row budget and number of processes; a run that
was killed continues from its last checkpoint with the samples it would have seen. Ctrl-C and SIGTERM write one after the step in
hand.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from pydantic import Field, model_validator
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shared.config import ServiceConfig
from shared.errors import ConfigError, TandemError
from shared.interrupt import INTERRUPTED, run_command
from shared.output_names import CHECKPOINTS, METRICS_FILE
from shared.trees import RecordTree
from trainer import checkpoint
from trainer.data.sft_conversations import Conversations, read_conversations, sample_order
from trainer.data.sft_records import RecordFilter, Records
from trainer.graceful_stop import stops_at_signals
from trainer.ineffective_settings import unused, warn_of_unused
from trainer.learner import Learner, OptimizerConfig, open_learner
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.compute_settings import ComputeSettings
from trainer.modeling.model import load_tokenizer
from trainer.modeling.trainable import Trainable
from trainer.parallel import Parallel, end_process, parallel_session
from trainer.publishing.weights import write_weights
from trainer.reporting.metrics import MetricsLog
from trainer.schedule import Schedule
from trainer.store_bridge import StoreBridge
from trainer.trees.packing import Row, pack
from trainer.trees.tree import Merging, merge

log = logging.getLogger(__name__)


class Stopped(TandemError):
    """A signal ended the training before its last step."""


class Data(Protocol):
    """What is trained on, sample by sample."""

    def __len__(self) -> int: ...

    def trees(self, indices: Sequence[int]) -> list[RecordTree]: ...


UNUSED = {  # settings that do nothing while another one has this value
    "min_lr_ratio": ("lr_schedule", "constant"),
    "save_total_limit": ("save_steps", 0),
    "lora_alpha": ("lora_rank", 0),
    "lora_target_modules": ("lora_rank", 0),
}


class SftConfig(ServiceConfig, RecordFilter, Trainable, ComputeSettings):
    """Supervised fine-tuning of a chat model on a JSONL file of conversations, or on the good records of a run."""

    section: ClassVar[str] = "sft"
    program: ClassVar[str] = "python -m trainer.sft"

    model_name_or_path: Path = Field(description="Hugging Face directory of the model to start from.")
    train_file: Path | None = Field(
        None,
        description='JSONL: one {"messages": [...], "tools": [...]} per line; the replies of the assistant are trained.',
    )
    output_dir: Path = Field(description="Checkpoints, metrics.jsonl, and at the end final/, a Hugging Face directory.")
    max_steps: int = Field(0, ge=0, description="Optimizer steps; 0 means as many as `epochs` needs.")
    epochs: float = Field(1.0, gt=0, description="Passes over the samples when max_steps is 0.")
    samples_per_step: int = Field(
        32, ge=1, description="Conversations or records per optimizer step, over all processes."
    )
    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate of AdamW.")
    lr_schedule: Schedule = Field("cosine", description="After the warm-up: constant, linear or cosine decay.")
    warmup_steps: int = Field(0, ge=0, description="Steps over which the rate climbs linearly to its peak.")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="Where the decay ends, as a share of the peak.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's, on matrices.")
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="AdamW's second moment; 0.95 forgets faster.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip the global gradient norm; 0 turns it off.")
    router_aux_loss_coef: float = Field(
        0.0, ge=0, description="Times the load-balancing loss of a mixture of experts (docs/training.md)."
    )
    max_tokens: int = Field(4096, ge=2, description="Longer samples are left out, and counted.")
    tokens_per_row: int = Field(512, ge=2, description="Budget of one forward; on CPU short rows are fastest.")
    output_dtype: str | None = Field(None, description="Of the written weights; none means that of the parameters.")
    seed: int = Field(0, ge=0, description="Of the order of the samples, and of new adapters.")
    save_steps: int = Field(
        0, ge=0, description="Steps between checkpoints; 0 writes none, unless Ctrl-C or SIGTERM ends the training."
    )
    save_total_limit: int = Field(2, ge=1, description="Checkpoints kept.")
    log_steps: int = Field(1, ge=1, description="Steps between lines of metrics.jsonl.")
    report_to: list[str] | None = Field(
        None,
        description="Trackers: tensorboard, wandb, swanlab, mlflow, trackio, none. None: tensorboard where installed.",
    )

    @model_validator(mode="after")
    def output_must_be_new(self) -> "SftConfig":
        if (self.output_dir / "final").exists():
            raise ValueError(f"{self.output_dir / 'final'} exists: that run is complete; choose another output_dir")
        return self

    @model_validator(mode="after")
    def data_is_a_file_or_a_run(self) -> "SftConfig":
        if (self.train_file is None) == (self.run is None):
            raise ValueError(
                "expected either train_file, a JSONL file of conversations, or run, whose records are trained"
            )
        if (self.run is None) != (self.db_connection_string is None):
            raise ValueError(
                "run and db_connection_string belong together: the run whose records are trained, and its MongoDB"
            )
        chosen = (RecordFilter.model_fields.keys() - {"run", "db_connection_string"}) & self.model_fields_set
        if self.run is None and chosen:
            raise ValueError(f"{min(chosen)} chooses records of a run: give run, or leave it out")
        return self

    def without_effect(self) -> dict[str, str]:
        """{setting: why it has no effect}."""
        found = unused(self, UNUSED)
        if self.max_steps and self.epochs != 1.0:
            found["epochs"] = f"max_steps is {self.max_steps}"
        return found

    def optimizer(self, max_steps: int) -> OptimizerConfig:
        names = ("learning_rate", "lr_schedule", "warmup_steps", "min_lr_ratio", "weight_decay", "adam_beta2")
        return OptimizerConfig(max_steps=max_steps, **{name: getattr(self, name) for name in (*names, "max_grad_norm")})


def main(argv: list[str] | None = None) -> None:
    """The command line program."""
    config = SftConfig.load_or_exit(argv)
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    try:
        with parallel_session(
            config.device, config.num_threads, tp_size=config.tp_size, cp_size=config.cp_size
        ) as parallel:
            train(config, parallel)
    except Stopped as exc:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"{exc}\n")
        end_process(INTERRUPTED)
    except TandemError as exc:
        sys.exit(f"{config.program}: {exc}")


def train(config: SftConfig, parallel: Parallel) -> Path:
    """Run to the end, from the last checkpoint when there is one; returns the written Hugging Face directory.

    Raises Stopped after SIGTERM or Ctrl-C, with a checkpoint of what was trained.
    """
    torch.manual_seed(config.seed)
    if parallel.is_main:
        warn_of_unused(config, config.without_effect())
    with _open_data(config, parallel) as data:
        return _train(config, parallel, data)


@contextmanager
def _open_data(config: SftConfig, parallel: Parallel) -> Iterator[Data]:
    if config.train_file is not None:
        conversations = Conversations(read_conversations(config.train_file), load_tokenizer(config.model_name_or_path))
        conversations.check(_indices_to_come(config, len(conversations)), parallel)
        yield conversations
        return
    assert config.run is not None
    assert config.db_connection_string is not None  # validators' promises
    with StoreBridge(config.db_connection_string, config.run, must_exist=True) as bridge:
        yield Records(bridge, config, config.output_dir, parallel, config.max_tokens)


def _indices_to_come(config: SftConfig, num_samples: int) -> Sequence[int]:
    """What the steps will take that no checkpoint has behind it."""
    newest, count = checkpoint.latest(config.output_dir / CHECKPOINTS), config.samples_per_step
    first = checkpoint.step_of(newest) if newest else 0
    wanted = max(0, _max_steps(config, num_samples) - first) * count
    return (
        range(num_samples) if wanted >= num_samples else sample_order(num_samples, first * count, wanted, config.seed)
    )


def _max_steps(config: SftConfig, num_samples: int) -> int:
    return config.max_steps or max(1, round(config.epochs * num_samples / config.samples_per_step))


def _train(config: SftConfig, parallel: Parallel, data: Data) -> Path:
    max_steps = _max_steps(config, len(data))
    learner = open_learner(
        config.model_name_or_path,
        LossConfig(loss_calculater=LossName.CROSS_ENTROPY, router_aux_loss_coef=config.router_aux_loss_coef),
        config.optimizer(max_steps),
        parallel,
        trainable=config.trainable(),
        dtype=config.dtype,
        attn_implementation=config.attn_implementation,
        prefix_trees=config.prefix_trees,
        dropout=config.dropout,
        compile_layers=config.compile_layers,
        memory=config.memory(),
    )
    checkpoints = config.output_dir / CHECKPOINTS
    if path := checkpoint.latest(checkpoints):
        checkpoint.load(learner, path, parallel)
    samples = Samples(data, config, parallel, linear=learner.linear)
    _steps(config, learner, samples, max_steps, parallel)
    written = write_weights(
        learner.causal_lm,
        config.model_name_or_path,
        config.output_dir / "final",
        parallel,
        dtype=config.output_dtype,
    )
    return written.path


def _steps(config: SftConfig, learner: Learner, samples: "Samples", max_steps: int, parallel: Parallel) -> None:
    checkpoints = checkpoint.Checkpoints(config.output_dir / CHECKPOINTS, parallel, keep_last=config.save_total_limit)
    accounting = {
        "model_name_or_path": str(config.model_name_or_path.resolve()),
        "trainable": config.trainable().model_dump(),
    }
    with ExitStack() as stack:
        stack.enter_context(stops_at_signals(samples))
        reporter = stack.enter_context(_Reporter(config, learner.steps_done, max_steps)) if parallel.is_main else None
        first, trained_tokens = learner.steps_done, 0.0
        for step, (rows, denominators) in samples.ahead(first, max_steps):
            result = learner.step(rows, denominators)
            trained_tokens += result.metrics["loss/trained_tokens"]
            if reporter:
                reporter.report(step, result.metrics | {"sft/left_out_samples": float(samples.left_out)})
            stops = learner.steps_done < max_steps and parallel.max_int(samples.stopping)
            if stops or (config.save_steps and learner.steps_done % config.save_steps == 0):
                checkpoints.save(learner, accounting)
            if stops:
                raise Stopped(
                    f"stopped after step {learner.steps_done} of {max_steps}; the same command goes on from there"
                )
    if first < max_steps and not trained_tokens:
        raise ConfigError(
            f"every sample of {max_steps - first} steps was left out: longer than max_tokens={config.max_tokens}; nothing was "
            "trained, and no model is written"
        )


class Samples:
    """The rows of this rank for any step; a function of the configuration and the step alone."""

    def __init__(
        self,
        data: Data,
        config: SftConfig,
        parallel: Parallel,
        *,
        linear: bool = False,
    ) -> None:
        self.left_out = 0  # of this rank, until now
        self.stopping = False  # no further step is to begin: a signal asked for it
        self._data = data
        self._config = config
        self._parallel = parallel
        self._linear = linear

    def ahead(self, first: int, stop: int) -> Iterator[tuple[int, tuple[list[Row], Denominators]]]:
        """(step, rows and counts) for each step; the next is prepared in a thread while the caller works on this one."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="samples") as pool:
            upcoming = pool.submit(self.of_step, first) if first < stop else None
            for step in range(first, stop):
                assert upcoming is not None
                ready = upcoming.result()
                upcoming = pool.submit(self.of_step, step + 1) if step + 1 < stop else None
                yield step, ready

    def of_step(self, step: int) -> tuple[list[Row], Denominators]:
        """Each rank takes every world_size-th sample; equal prefixes among them are computed once."""
        config = self._config
        count = config.samples_per_step
        order = sample_order(len(self._data), step * count, count, config.seed)
        records = self._data.trees(order[self._parallel.data.rank :: self._parallel.data.size])
        fitting = [record for record in records if record.num_tokens <= config.max_tokens]
        for record in records:
            if record.num_tokens > config.max_tokens:
                log.warning(
                    "%s: %d tokens, max_tokens is %d: left out", record.record_id, record.num_tokens, config.max_tokens
                )
        self.left_out += len(records) - len(fitting)
        tree = merge(fitting, merging=Merging.LINEAR if self._linear else Merging.TREE)
        rows = pack(
            [tree],
            config.tokens_per_row,
            one_sequence_per_row=self._linear,
            every_token=config.router_aux_loss_coef > 0,
        )
        return rows, Denominators.count(torch.from_numpy(tree.trained_tokens_T))


class _Reporter:
    """Progress bar and metrics file, on the main process."""

    def __init__(self, config: SftConfig, first: int, max_steps: int) -> None:
        self._log_steps, self._last = config.log_steps, max_steps - 1
        self._metrics = MetricsLog(
            config.output_dir / METRICS_FILE,
            resume_step=first,
            trackers=config.report_to,
            run_name="sft",
            settings=config.snapshot(),
        )
        columns = (TextColumn("sft"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._bar = self._progress.add_task("", total=max_steps, completed=first)
        self._started, self._first = time.monotonic(), first

    def report(self, step: int, metrics: dict[str, float]) -> None:
        rate = (step + 1 - self._first) / (time.monotonic() - self._started)
        loss = metrics.get("loss/loss", float("nan"))
        self._progress.update(self._bar, advance=1, description=f"loss {loss:.4f}  {rate:.1f} steps/s")
        if step % self._log_steps == 0 or step == self._last:
            self._metrics.log(step, metrics | {"sft/steps_per_s": rate})

    def __enter__(self) -> "_Reporter":
        self._metrics.__enter__()
        self._progress.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.__exit__(None, None, None)
        self._metrics.__exit__(None, None, None)


if __name__ == "__main__":
    run_command(main)
    end_process(0)
