"""Rank 0 alone reads the weights: the others come to the same parameters, and never hold the whole model."""

import ctypes
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shared.errors import ConfigError
from tests.trainer.builders import tiny_model
from tests.trainer.launched import OPTIMIZER, exact_learner, full_parameters, take_steps
from tests.trainer.layouts import Layout, run
from trainer.losses import LossConfig
from trainer.modeling.forward_choice import ProbeResult
from trainer.process.parallel import Parallel
from trainer.process.shard_settings import ShardSettings
from trainer.settings.trained_parts import Trainable
from trainer.step import opening
from trainer.step.opening import LearnerOptions

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def with_settings(parallel: Parallel, settings: ShardSettings) -> Parallel:
    return dataclasses.replace(parallel, settings=settings)


def without_weights(directory: Path) -> Path:
    """Beside the model's directory one that says what the model is, and no more."""
    bare = directory.with_name("bare")
    bare.mkdir()
    shutil.copyfile(directory / "config.json", bare / "config.json")
    return bare


@pytest.mark.parametrize(
    ("layout", "tied"),
    [
        (Layout(2), True),
        pytest.param(Layout(2), False, marks=pytest.mark.thorough),
        pytest.param(Layout(2, tp=2), True, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_a_model_that_only_the_first_process_can_read_is_trained_by_all(
    layout: Layout, tied: bool, tmp_path: Path
) -> None:
    """With the next layer's parameters asked for ahead, which must not change anything either."""
    whole = tmp_path / "whole"
    tiny_model(tied=tied).save_pretrained(whole)
    bare = without_weights(whole)

    def work(parallel: Parallel) -> None:
        expected = exact_learner(whole, parallel)
        settings = ShardSettings(first_loads=True, forward_prefetch=True)
        other = exact_learner(whole if parallel.is_main else bare, with_settings(parallel, settings))
        for steps in (0, 1):
            for each in (expected, other):
                take_steps(each, steps, 30, parallel)
            found = full_parameters(other)
            for name, parameter in full_parameters(expected).items():
                assert torch.equal(found[name], parameter), (steps, name)

    run(layout, work)


def test_adapters_are_refused_where_only_the_first_process_has_the_model(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        first_loads = with_settings(parallel, ShardSettings(first_loads=True))
        with pytest.raises(ConfigError, match="lora_rank is 2 and fsdp_cpu_ram_efficient_loading true"):
            opening.open_learner(
                tmp_path / "model",
                LossConfig(),
                OPTIMIZER,
                first_loads,
                LearnerOptions(trainable=Trainable(lora_rank=2)),
            )

    run(Layout(2), work)


def test_the_other_process_never_holds_the_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB in matrices of 4 MB. Beyond its half, the other process needs memory for a tensor or two at a time, until the
    loaded model is computed for the first time: that gathers layers, as every step does, and is where this test ends."""

    class Loaded(Exception):
        """Nothing was computed yet."""

    def before_it_is_computed(*_: Any, **__: Any) -> ProbeResult:
        raise Loaded

    whole = tmp_path / "whole"
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = Qwen3Config(vocab_size=37, hidden_size=256, intermediate_size=4096, num_hidden_layers=8, **heads)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(whole)
    model_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    bare, tiny = without_weights(whole), tmp_path / "tiny"
    tiny_model().save_pretrained(tiny)

    def work(parallel: Parallel) -> None:
        # Freed tensors go back to the kernel at once: what glibc keeps of them was up to a fifth of the model, by chance.
        assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1
        exact_learner(tiny, with_settings(parallel, ShardSettings(first_loads=True)))  # what is imported and made once
        monkeypatch.setattr(opening, "choose_forward_mode", before_it_is_computed)
        for first_loads in (True, False):
            directory = whole if parallel.is_main or not first_loads else bare
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
            before = _memory("VmRSS")
            settings = ShardSettings(first_loads=first_loads)
            with pytest.raises(Loaded):
                opening.open_learner(directory, LossConfig(), OPTIMIZER, with_settings(parallel, settings))
            peak = _memory("VmHWM") - before
            if not parallel.is_main:
                assert (peak < 0.9 * model_bytes) is first_loads, (peak, model_bytes)

    run(Layout(2), work)


def _memory(what: str) -> int:
    """Bytes: VmRSS now, VmHWM at most since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))
