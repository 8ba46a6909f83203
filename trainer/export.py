"""Exports a checkpoint as a Hugging Face directory for transformers and SGLang: `tandem export-model RUN` runs this.

    python -m trainer.export --checkpoint output/RUN/checkpoints/step-000070 --output_dir models/my-model

Needs no database and no GPU, one process (also for checkpoints of many processes), and memory for one copy of the model.
Configuration, tokenizer, template and frozen parameters come from the run's initial model directory; adapters are merged
into it or, with --adapter true, written separately in PEFT's format.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import json
import logging
import sys
import time
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from rich.console import Console
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from transformers import PreTrainedModel

from shared.configuration.loading import ServiceConfig
from shared.errors import ConfigError, DataError, TandemError
from shared.weights.files import manifest_of
from trainer.checkpoints.atomic_directories import write_directory_atomically
from trainer.checkpoints.digests import verify_digests
from trainer.checkpoints.restore import STATE_FILE, TRAINED, load_tensors, stored_tensors, without_frozen
from trainer.modeling.forward import TreeLM
from trainer.modeling.model import load_model
from trainer.process.ending import end_process
from trainer.process.parallel import Parallel, parallel_session
from trainer.publishing.adapter import AdaptedLayers, gather_adapter, write_adapter
from trainer.publishing.weights import WrittenWeights, write_weights
from trainer.settings.trained_parts import LoraSettings, Trainable


class ExportConfig(ServiceConfig):
    """Writes a checkpoint's weights as a Hugging Face directory."""

    section: ClassVar[str] = "export"
    program: ClassVar[str] = "python -m trainer.export"

    checkpoint: Path = Field(description="A complete checkpoint: output/RUN/checkpoints/step-000070.")
    output_dir: Path = Field(description="Directory to write; it must not exist.")
    model_name_or_path: Path | None = Field(
        None, description="Where configuration and tokenizer are. None: the directory that the run started from."
    )
    dtype: Literal["float32", "bfloat16", "float64"] | None = Field(
        None, description="Of the written weights. None: that of the parameters."
    )
    adapter: bool = Field(False, description="Write the adapters alone, of a checkpoint that has them.")

    @model_validator(mode="after")
    def adapters_are_written_as_they_are(self) -> "ExportConfig":
        if self.adapter and self.dtype:
            raise ValueError(
                f"dtype is {self.dtype}; expected none with adapter: adapters are written as they were trained"
            )
        return self


def export(config: ExportConfig) -> WrittenWeights:
    """Export. Raises DataError for an unreadable checkpoint, ConfigError if the output exists or the model is missing."""
    if config.output_dir.exists():
        raise ConfigError(f"{config.output_dir} exists; expected a new directory: a written model is never changed")
    source = config.model_name_or_path or source_of(config.checkpoint)
    verify_digests(config.checkpoint)
    with parallel_session("cpu") as parallel:
        trainable = trainable_of(config.checkpoint)
        if config.adapter and trainable.lora is None:
            raise ConfigError(f"{config.checkpoint} was trained without adapters; leave --adapter out")
        lm = TreeLM(load_model(source, dtype=stored_dtype(config.checkpoint), trainable=trainable))
        state = {"model": without_frozen(lm, get_model_state_dict(lm, options=TRAINED))}
        load_tensors(config.checkpoint, state)
        set_model_state_dict(lm, state["model"], options=TRAINED)
        if config.adapter and trainable.lora:
            return _write_adapter(config.output_dir, lm.causal_lm, parallel, trainable.lora, source)
        return write_weights(lm.causal_lm, source, config.output_dir, parallel, dtype=config.dtype)


def _write_adapter(
    target: Path, model: PreTrainedModel, parallel: Parallel, lora: LoraSettings, source: Path
) -> WrittenWeights:
    started = time.monotonic()
    state, targets = gather_adapter(model, parallel), AdaptedLayers.of(model, parallel).targets

    def fill(temporary: Path) -> None:
        write_adapter(temporary, targets, state, lora, source)

    write_directory_atomically(target, fill)
    manifest = manifest_of(target)
    return WrittenWeights(target, manifest, sum(e["bytes"] for e in manifest.values()), time.monotonic() - started)


def source_of(checkpoint: Path) -> Path:
    """The model that the run started from: configuration, tokenizer, frozen parameters."""
    try:
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        source = Path(state["accounting"]["model_name_or_path"])
    except (OSError, ValueError, KeyError) as exc:
        raise DataError(
            f"{checkpoint}: {STATE_FILE} does not say which model the run started from ({exc}); expected a complete "
            "checkpoint of the trainer, or --model_name_or_path"
        ) from exc
    if not (source / "config.json").is_file():
        raise ConfigError(f"{checkpoint}: the run started from {source}, which is gone; pass --model_name_or_path")
    return source


def trainable_of(checkpoint: Path) -> Trainable:
    state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    return Trainable.model_validate(state["accounting"].get("trainable", {}))


def stored_dtype(checkpoint: Path) -> str:
    """The saved parameters' dtype, so that the written bits equal theirs."""
    dtypes = {str(tensor.properties.dtype).removeprefix("torch.") for tensor in stored_tensors(checkpoint).values()}
    floating = sorted(dtypes & {"float32", "bfloat16", "float64"})
    if len(floating) != 1:
        raise DataError(f"{checkpoint}: its parameters are of {sorted(dtypes)}; expected one floating dtype")
    return floating[0]


def main() -> None:
    config = ExportConfig.load_or_exit()
    logging.basicConfig(level="WARNING")
    console = Console(stderr=True, highlight=False)
    try:
        with console.status(f"exporting {config.checkpoint}"):
            written = export(config)
    except TandemError as exc:
        console.print(f"{config.program}: {exc}", soft_wrap=True, markup=False)
        end_process(1)
    sys.stdout.write(f"{written.path}  ({written.total_bytes:,} bytes, {written.seconds:.1f} s)\n")
    end_process(0)


if __name__ == "__main__":
    run_command(main)
