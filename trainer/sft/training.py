"""Supervised fine-tuning on conversations or on records of a run, with the code path of reinforcement learning; writes a
Hugging Face directory.

    train_file | run ─▶ samples of a step ─▶ merge prefixes ─▶ pack rows ─▶ Learner.step (CrossEntropy) ─▶ metrics ─▶ checkpoint
                        └─ prepared one step ahead in a thread ─┘

    python -m trainer.sft --model_name_or_path MODEL --train_file data.jsonl --output_dir output/sft --max_steps 500
    python -m trainer.sft --model_name_or_path MODEL --run RUN --db_connection_string URI --min_score 1 --output_dir output/rft
    accelerate launch --config_file assets/fsdp2.yml --num_processes 2 -m trainer.sft ...

Promise: a step's loss and gradient are independent of the row budget and the number of processes; a killed run continues
from its last checkpoint with the same samples. Ctrl-C and SIGTERM write a checkpoint after the current step.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
import torch
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shared.errors import ConfigError, TandemError
from shared.files.output_names import CHECKPOINTS, METRICS_FILE
from shared.images.families import family_of
from shared.processes.interrupt import INTERRUPTED
from shared.tokens.record_tree import RecordTree
from trainer.checkpoints import checkpoint, folders, restore
from trainer.data.images import RecordImages
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.model import load_config, load_tokenizer
from trainer.modeling.vision import has_vision
from trainer.process.ending import end_process
from trainer.process.graceful_stop import stops_at_signals
from trainer.process.parallel import Parallel, parallel_session
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.weights import write_weights
from trainer.reporting.metrics import MetricsLog
from trainer.reporting.moved import Moved
from trainer.settings.ineffective import warn_of_unused
from trainer.sft.config import SftConfig
from trainer.sft.conversations import Conversations, read_conversations, sample_order
from trainer.sft.images import ConversationImages
from trainer.sft.records import Records
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

log = logging.getLogger(__name__)


class Stopped(TandemError):
    """A signal ended the training before its last step."""


class Data(Protocol):
    """Training data, by sample."""

    def __len__(self) -> int: ...

    def trees(self, indices: Sequence[int]) -> list[RecordTree]: ...

    def pixels(self, sha256: str) -> Mapping[str, npt.NDArray[Any]]: ...


def run(config: SftConfig) -> None:
    """The work of the command line program."""
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    try:
        with parallel_session(**config.parallel.model_dump()) as parallel:
            train(config, parallel)
    except Stopped as exc:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"{exc}\n")
        end_process(INTERRUPTED)
    except TandemError as exc:
        sys.exit(f"{config.program}: {exc}")


def train(config: SftConfig, parallel: Parallel) -> Path:
    """Train to the end, from the last checkpoint if any; returns the written Hugging Face directory.

    Raises Stopped after SIGTERM or Ctrl-C, after saving a checkpoint.
    """
    torch.manual_seed(config.seed + parallel.data.rank)  # of masks: ranks leave out different parts
    if parallel.is_main:
        warn_of_unused(config, config.without_effect())
    with _open_data(config, parallel) as data:
        return _train(config, parallel, data)


@contextmanager
def _open_data(config: SftConfig, parallel: Parallel) -> Iterator[Data]:
    if config.data.train_file is not None:
        conversations = Conversations(
            read_conversations(config.data.train_file),
            load_tokenizer(config.model.model_name_or_path, config.data.chat_template),
            _images_of(config.model.model_name_or_path, config.data.train_file.parent),
        )
        conversations.check(_indices_to_come(config, len(conversations)), parallel)
        yield conversations
        return
    criteria = config.data.records
    assert criteria is not None  # a validator's promise
    with StoreBridge(criteria.db_connection_string, criteria.run, must_exist=True) as bridge:
        directory, linear = config.model.model_name_or_path, not config.model.prefix_trees
        images = RecordImages(bridge, directory, linear=linear)
        yield Records(bridge, criteria, config.output_dir, parallel, config.data.max_tokens, images)


def _images_of(model_directory: Path, folder: Path) -> ConversationImages | None:
    """The reader of images of the conversations in `folder`; None for a model of text."""
    family = family_of(model_directory) if has_vision(load_config(model_directory)) else None
    return None if family is None else ConversationImages(family, folder)


def _indices_to_come(config: SftConfig, num_samples: int) -> Sequence[int]:
    """Indices of the samples that remaining steps will use."""
    newest, count = folders.latest(config.output_dir / CHECKPOINTS), config.data.samples_per_step
    first = folders.step_of(newest) if newest else 0
    remaining = max(0, _max_steps(config, num_samples) - first) * count
    return (
        range(num_samples)
        if remaining >= num_samples
        else sample_order(num_samples, first * count, remaining, config.seed)
    )


def _max_steps(config: SftConfig, num_samples: int) -> int:
    return config.optimizer.max_steps or max(1, round(config.data.epochs * num_samples / config.data.samples_per_step))


def _train(config: SftConfig, parallel: Parallel, data: Data) -> Path:
    max_steps = _max_steps(config, len(data))
    loss = LossConfig(loss=LossName.CROSS_ENTROPY, router_aux_loss_coef=config.optimizer.router_aux_loss_coef)
    options = LearnerOptions.of(config.model, config.memory, config.seed)
    directory, optimizer = config.model.model_name_or_path, config.optimizer.chosen(max_steps)
    learner = open_learner(directory, loss, optimizer, parallel, options)
    checkpoints = config.output_dir / CHECKPOINTS
    path = folders.latest(checkpoints)
    if path:
        restore.load(learner, path, parallel)
    samples = Samples(data, config, parallel, linear=learner.linear, short_rows=learner.short_rows)
    _steps(config, learner, samples, max_steps, parallel)
    written = write_weights(
        learner.causal_lm,
        config.model.model_name_or_path,
        config.output_dir / "final",
        parallel,
        dtype=config.checkpoint.output_dtype,
    )
    return written.path


def _steps(config: SftConfig, learner: Learner, samples: "Samples", max_steps: int, parallel: Parallel) -> None:
    checkpoints = checkpoint.Checkpoints(
        config.output_dir / CHECKPOINTS, parallel, keep_last=config.checkpoint.keep_checkpoints
    )
    accounting = {
        "model_name_or_path": str(config.model.model_name_or_path.resolve()),
        "trainable": config.model.trainable(config.seed).model_dump(),
    }
    with ExitStack() as stack:
        stack.enter_context(stops_at_signals(samples))
        reporter = stack.enter_context(_Reporter(config, learner.steps_done, max_steps)) if parallel.is_main else None
        first, trained_tokens = learner.steps_done, 0.0
        moved = Moved(config.output_dir / METRICS_FILE, first, parallel)
        for step, minibatch in samples.ahead(first, max_steps):
            result = learner.step_in_minibatches([minibatch])
            trained_tokens += result.metrics["loss/trained_tokens"]
            moved.note(step + 1, skipped=result.skipped, not_finite=result.not_finite)
            if reporter:
                reporter.report(step, result.metrics | {"sft/left_out_samples": float(samples.excluded)})
            stops = learner.steps_done < max_steps and parallel.max_int(samples.stopping)
            if stops or (config.checkpoint.save_steps and learner.steps_done % config.checkpoint.save_steps == 0):
                checkpoints.save(learner, accounting)
            if stops:
                raise Stopped(
                    f"stopped after step {learner.steps_done} of {max_steps}; the same command goes on from there"
                )
    if first < max_steps and not trained_tokens:
        raise ConfigError(
            f"every sample of {max_steps - first} steps was left out: longer than max_tokens={config.data.max_tokens}; nothing "
            "was trained, and no model is written"
        )
    moved.check()


class Samples:
    """This rank's rows for any step; a pure function of configuration and step."""

    def __init__(
        self,
        data: Data,
        config: SftConfig,
        parallel: Parallel,
        *,
        linear: bool = False,
        short_rows: bool = False,
    ) -> None:
        self.excluded = 0  # of this rank so far
        self.stopping = False  # set by a signal: begin no further step
        self._data = data
        self._config = config
        self._parallel = parallel
        self._linear = linear
        self._short_rows = short_rows

    def ahead(self, first: int, stop: int) -> Iterator[tuple[int, Minibatch]]:
        """Yield (step, its rows and counts); a thread prepares the next step during the current one."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="samples") as pool:
            upcoming = pool.submit(self.of_step, first) if first < stop else None
            for step in range(first, stop):
                assert upcoming is not None
                ready = upcoming.result()
                upcoming = pool.submit(self.of_step, step + 1) if step + 1 < stop else None
                yield step, ready

    def of_step(self, step: int) -> Minibatch:
        """Each rank takes every world_size-th sample; equal prefixes among them are computed once."""
        config = self._config
        count = config.data.samples_per_step
        order = sample_order(len(self._data), step * count, count, config.seed)
        records = self._data.trees(order[self._parallel.data.rank :: self._parallel.data.size])
        fitting = [record for record in records if record.num_tokens <= config.data.max_tokens]
        for record in records:
            if record.num_tokens > config.data.max_tokens:
                log.warning(
                    "%s: %d tokens, max_tokens is %d: left out",
                    record.record_id,
                    record.num_tokens,
                    config.data.max_tokens,
                )
        self.excluded += len(records) - len(fitting)
        tree = merge(fitting, merging=Merging.LINEAR if self._linear else Merging.TREE)
        rows = pack(
            [tree],
            config.data.tokens_per_row,
            one_sequence_per_row=self._linear,
            every_token=config.optimizer.router_aux_loss_coef > 0,
            short_rows=self._short_rows,
        )
        if tree.images is not None:
            rows = [row.with_pixels(self._data.pixels) for row in rows]
        counts = Denominators.count(torch.from_numpy(tree.trained_tokens_T))
        return Minibatch(rows, counts, records_T=[record.record_id for record in fitting])


class _Reporter:
    """Progress bar and metrics file, on the main process."""

    def __init__(self, config: SftConfig, first: int, max_steps: int) -> None:
        self._metrics = MetricsLog(
            config.output_dir / METRICS_FILE,
            resume_step=first,
            trackers=config.report.report_to,
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
        self._metrics.log(step, metrics | {"sft/steps_per_s": rate})

    def __enter__(self) -> "_Reporter":
        self._metrics.__enter__()
        self._progress.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.__exit__(None, None, None)
        self._metrics.__exit__(None, None, None)
