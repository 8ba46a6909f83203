"""Writes a model whose linear layers hold numbers of 4 bits, for QLoRA: `tandem quantize` is the same.

    python -m trainer.quantize --model_name_or_path my-model --output_dir my-model-nf4
    tandem run my_run --model my-model-nf4 --lora_rank 16 --base_quantization nf4

The files keep their types and their size, so that every engine serves them: only the numbers are those nearest that NF4 holds.
The trainer then holds them in 4 bits without changing one (`trainer/modeling/quantized_base.py`). Needs no GPU, and memory for
the largest file.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import logging
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from rich.console import Console
from rich.progress import track

from shared.configuration.loading import ServiceConfig
from shared.errors import ConfigError, TandemError
from shared.files.hub import ModelFolder
from trainer.checkpoints.atomic_directories import write_directory_atomically
from trainer.process.ending import end_process


class QuantizeConfig(ServiceConfig):
    """Writes a model whose linear layers hold numbers of 4 bits, for `base_quantization: nf4`."""

    section: ClassVar[str] = "quantize"
    program: ClassVar[str] = "python -m trainer.quantize"

    model_name_or_path: ModelFolder = Field(description="Hugging Face directory to read, or a name of the Hub.")
    output_dir: Path = Field(description="Directory to write; it must not exist.")


@dataclass(frozen=True, slots=True)
class Quantized:
    """`error`: the Frobenius norm of what changed, as a part of that of the layers' weights."""

    layers: int
    weights: int
    error: float


def quantize(config: QuantizeConfig, console: Console) -> Quantized:
    """Raises ConfigError if the output exists, or for a model that has no such layers or keeps them under other names."""
    from trainer.modeling.quantized_base import four_bit_layers
    from trainer.modeling.sharded_loading import empty_model
    from trainer.publishing.weights import copy_other_files
    from trainer.settings.trained_parts import EVERYTHING

    source, target = config.model_name_or_path, config.output_dir
    if target.exists():
        raise ConfigError(f"{target} exists; expected a new directory: a written model is never changed")
    model = empty_model(source, dtype="float32", attn_implementation="eager", trainable=EVERYTHING)
    names = {f"{name}.weight" for name in four_bit_layers(model)}
    measured = _Sums()

    def fill(temporary: Path) -> None:
        copy_other_files(source, temporary)
        for index in source.glob("*.safetensors.index.json"):  # each tensor stays in its file
            shutil.copyfile(index, temporary / index.name)
        files = sorted(source.glob("*.safetensors"))
        for path in track(files, "quantizing", console=console, transient=True, disable=not console.is_terminal):
            measured.add(path, temporary / path.name, names)
        if missing := sorted(names - measured.found):
            raise ConfigError(
                f"{source}: its files have no {missing[0]}, which is a linear layer of the model; expected files with the "
                "model's own names"
            )

    write_directory_atomically(target, fill)
    return Quantized(len(names), measured.weights, (measured.changed / measured.squares) ** 0.5)


class _Sums:
    def __init__(self) -> None:
        self.found: set[str] = set()
        self.weights, self.changed, self.squares = 0, 0.0, 0.0

    def add(self, path: Path, target: Path, names: set[str]) -> None:
        """One file of weights: written to `target` with the nearest numbers in the matrices of `names`. Raises ConfigError."""
        from safetensors import safe_open
        from safetensors.torch import save_file

        from trainer.modeling.quantized_base import nearest

        tensors = {}
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            for name in file.keys():  # noqa: SIM118  # no mapping
                tensors[name] = file.get_tensor(name)
                if name in names:
                    before = tensors[name]
                    if not bool(before.isfinite().all()):
                        raise ConfigError(
                            f"{path}: {name} has numbers that are not finite; expected a model that answers"
                        )
                    tensors[name] = nearest(before)
                    self.found.add(name)
                    self.weights += before.numel()
                    self.changed += float((tensors[name].double() - before.double()).square().sum())
                    self.squares += float(before.double().square().sum())
        save_file(tensors, target, metadata)


def main() -> None:
    config = QuantizeConfig.load_or_exit()
    logging.basicConfig(level="WARNING")
    console = Console(stderr=True, highlight=False)
    try:
        done = quantize(config, console)
    except TandemError as exc:
        console.print(f"{config.program}: {exc}", soft_wrap=True, markup=False)
        end_process(1)
    sys.stdout.write(
        f"{config.output_dir}  ({done.layers} layers, {done.weights:,} weights of 4 bits; relative error {done.error:.3f})\n"
    )
    end_process(0)


if __name__ == "__main__":
    run_command(main)
