"""Either as many processes train together as were launched, or the start is refused; the launcher's settings are in force."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.trainer.builders import random_group, tiny_model
from tests.trainer.conftest import Launch, launch
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.process.parallel import LaunchError, Parallel, parallel_session
from trainer.process.shard_settings import ShardSettings, read_shard_settings
from trainer.process.sharding import shard_model
from trainer.trees.packing import pack
from trainer.trees.tree import merge


def test_two_launched_processes_are_two_ranks_of_one_group(two_processes: Launch) -> None:
    reports = [json.loads((two_processes.out / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [report["world_size"] for report in reports] == [2, 2]
    assert [report["seen"] for report in reports] == [[0, 1], [0, 1]]
    assert reports[0]["settings"]["reshard_after_forward"] is True


def test_a_launch_that_starts_one_process_for_two_is_refused(tmp_path: Path, model_directory: Path) -> None:
    program = ["-m", "tests.trainer.launched", str(tmp_path), str(model_directory)]
    done = launch("--cpu", "--num_processes", "2", "--num_machines", "1", *program)
    assert done.returncode != 0
    assert "started one without a rank" in done.stdout
    assert not list(tmp_path.iterdir())


def test_another_number_of_processes_than_the_script_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_NUM_PROCESSES", "2")
    with pytest.raises(LaunchError, match="says 2 trainer processes, 1 came up"), parallel_session("cpu"):
        pass
    assert not dist.is_initialized()


def test_one_process_needs_no_launcher_and_leaves_no_group_behind() -> None:
    for _ in range(2):
        with parallel_session("cpu", num_threads=1) as parallel:
            assert (parallel.rank, parallel.world_size, parallel.is_main) == (0, 1, True)
            assert parallel.data.sum_scalars([2.5]) == [2.5]
            assert parallel.broadcast_object({"a": 1}) == {"a": 1}
        assert not dist.is_initialized()


def test_the_settings_of_the_launcher_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("FSDP_RESHARD_AFTER_FORWARD", "false")
    monkeypatch.setenv("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")
    monkeypatch.setenv("FSDP_TRANSFORMER_CLS_TO_WRAP", "Qwen3DecoderLayer")
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    monkeypatch.setenv("FSDP_FORWARD_PREFETCH", "true")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    with parallel_session("cpu", num_threads=1) as parallel:
        assert parallel.settings == ShardSettings("bf16", False, ("Qwen3DecoderLayer",), False, True, True, True)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "fsdp_version is '1'; expected 2"),
        ({"FSDP_BACKWARD_PREFETCH": "NO_PREFETCH"}, "fsdp_backward_prefetch is 'NO_PREFETCH'; expected BACKWARD_PRE"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "mixed_precision is 'fp16'; expected one of no, bf16"),
    ],
)
def test_settings_that_would_not_be_honored_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_shard_settings(environment)


def test_a_model_is_sharded_layer_by_layer_and_unknown_layers_are_refused(alone: Parallel) -> None:
    model = tiny_model(dtype=torch.float32)
    with pytest.raises(ValueError, match="no layer of class Unknown to shard"):
        shard_model(model, ("Unknown",), alone)
    shard_model(model, ("Qwen3DecoderLayer",), dataclasses.replace(alone, settings=ShardSettings("bf16")))
    sharded = [name for name, module in model.named_modules() if type(module).__name__.startswith("FSDP")]
    assert sharded == ["", "model.layers.0", "model.layers.1"]
    assert isinstance(model, nn.Module)


def test_one_process_on_a_cpu_copies_no_parameters(alone: Parallel) -> None:
    model = tiny_model(dtype=torch.float32)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    shard_model(model, ("Qwen3DecoderLayer",), alone)
    assert not any(isinstance(parameter, DTensor) for parameter in model.parameters())
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_in_bfloat16_layers_compute_in_it_and_gradients_and_log_probs_are_float32(alone: Parallel) -> None:
    bf16 = dataclasses.replace(alone, settings=ShardSettings("bf16"))
    lm = TreeLM(tiny_model(dtype=torch.float32))
    seen = []
    lm.causal_lm.model.layers[0].register_forward_hook(lambda _, args, out: seen.append(out.dtype))
    shard_model(lm, ("Qwen3DecoderLayer",), bf16)
    (row,) = pack([merge(random_group(3))], 1000)
    logprob_E, _ = row_logprobs(lm, row)
    logprob_E.sum().backward()
    assert (seen, logprob_E.dtype) == ([torch.bfloat16], torch.float32)
    assert {parameter.grad.dtype for parameter in lm.parameters()} == {torch.float32}


@pytest.mark.parametrize("reshard", [True, False])
def test_a_layers_parameters_are_freed_after_its_forward_or_kept_until_its_backward(
    alone: Parallel, reshard: bool
) -> None:
    lm = TreeLM(tiny_model(dtype=torch.float32))
    settings = ShardSettings("bf16", reshard_after_forward=reshard)
    shard_model(lm, ("Qwen3DecoderLayer",), dataclasses.replace(alone, settings=settings))
    (row,) = pack([merge(random_group(3))], 1000)
    logprob_E, _ = row_logprobs(lm, row)
    for layer in lm.causal_lm.model.layers:
        assert {isinstance(parameter, DTensor) for parameter in layer.parameters()} == {reshard}
    logprob_E.sum().backward()
    assert all(isinstance(parameter, DTensor) for parameter in lm.parameters())


@pytest.mark.parametrize("ahead", [True, False])
def test_a_layer_asks_for_the_next_ones_parameters_where_the_launcher_says_so(alone: Parallel, ahead: bool) -> None:
    lm = TreeLM(tiny_model(dtype=torch.float32))
    settings = ShardSettings("bf16", forward_prefetch=ahead)
    shard_model(lm, ("Qwen3DecoderLayer",), dataclasses.replace(alone, settings=settings))
    first, second = (layer._get_fsdp_state() for layer in lm.causal_lm.model.layers)  # FSDP2 has no public way to ask
    assert first._states_to_forward_prefetch == ([second] if ahead else [])
    assert second._states_to_forward_prefetch == []
    assert first._mp_policy.reduce_dtype == torch.float32
