"""Versions published as adapters: whole for every follower, each on its own, of the weights that the trainer holds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from shared.errors import ConfigError, DataError
from shared.processes.mongod import Mongod
from shared.weights.adapters import ADAPTER_FOLDER, ADAPTER_WEIGHTS
from shared.weights.assembly import Reached
from shared.weights.files import WEIGHTS_FILE
from tests.trainer.builders import tiny_model
from tests.trainer.published import Publishing, publish_bridge
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.weights import gather_state

IDS = torch.tensor([[1, 5, 2, 7, 7, 30]])


class Adapted(Publishing):
    """With adapters, and what the merged weights were at each step."""

    def __init__(self, bridge: StoreBridge, parallel: Parallel, folder: Path, stored: str, **options: Any) -> None:
        if not (folder / "model").exists():
            tiny_model().to(getattr(torch, stored)).save_pretrained(folder / "model")
        self.expected: dict[int, dict[str, torch.Tensor]] = {}
        adapters = {"publish_mode": "adapter", "lora_rank": 4, "lora_alpha": 6.0, "keep_versions": 50}
        super().__init__(bridge, parallel, folder, **adapters | options)

    def step(self, step: int) -> dict[str, float]:
        self.nudge(step, lambda local: local.add_(torch.randn_like(local), alpha=0.1))
        state = gather_state(self.learner.causal_lm, self.parallel, None)
        self.expected[step] = {name: tensor.clone() for name, tensor in state.items()}
        return self.publisher.publish(step)

    def assert_whole(self, reached: Reached) -> None:
        """Bit for bit the weights that mode full would have published, in the form of the base."""
        written = load_file(reached.folder / WEIGHTS_FILE)
        expected = self.expected[reached.version.step]
        assert written.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in written.items())

    def flip(self, number: int) -> None:
        path = Path(self.versions()[number].path) / ADAPTER_FOLDER / ADAPTER_WEIGHTS
        data = bytearray(path.read_bytes())
        data[-9] ^= 4
        path.write_bytes(data)


@pytest.fixture
def adapted(mongod: Mongod, alone: Parallel, tmp_path: Path) -> Iterator[Callable[..., Adapted]]:
    with publish_bridge(mongod) as bridge:
        yield lambda stored="float32", **options: Adapted(bridge, alone, tmp_path, stored, **options)


@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_and_its_base_are_the_weights_of_mode_full_bit_for_bit(
    adapted: Callable[..., Adapted], dtype: str, use_dora: bool
) -> None:
    run = adapted(stored=dtype, dtype=dtype, max_steps=4, use_dora=use_dora)
    metrics = [run.step(step) for step in (1, 2, 3, 4)]
    assert [v.kind for v in run.versions()] == ["full", "adapter", "adapter", "adapter", "full"]
    assert [v.base for v in run.versions()] == [None, 0, 0, 0, 0]
    for number in (3, 1, 4, 2):
        reached = run.reach(number)
        assert (reached.version.version, reached.problems) == (number, ())
        run.assert_whole(reached)
    complete = sum(entry["bytes"] for entry in run.versions()[0].files.values())
    assert metrics[0]["publish/bytes"] < complete < metrics[3]["publish/bytes"], "the last one is complete, too"
    run.flip(4)
    run.assert_whole(run.reach(4, cache="of the complete one"))


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT asks for it
def test_a_published_adapter_is_one_that_peft_loads(adapted: Callable[..., Adapted]) -> None:
    run = adapted(lora_target_modules=["q_proj", "layers.1.mlp.down_proj"])
    run.step(1)
    base = AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(run.reach(1).folder, dtype=torch.float32)
    with torch.no_grad():
        before, expected = base(IDS).logits, merged(IDS).logits
        beside = peft.PeftModel.from_pretrained(base, Path(run.versions()[1].path) / ADAPTER_FOLDER)
        found = beside(input_ids=IDS).logits
    assert float((found - expected).abs().max()) < 1e-4
    assert float((before - expected).abs().max()) > 1e-2


def test_a_damaged_adapter_is_passed_by_the_one_before_or_a_complete_version_and_never_over(
    adapted: Callable[..., Adapted],
) -> None:
    run = adapted()
    for step in (1, 2, 3):
        run.step(step)
    run.flip(3)
    instead = run.reach(3)
    assert (instead.version.version, len(instead.problems)) == (2, 1)
    assert ADAPTER_WEIGHTS in instead.problems[0]
    run.assert_whole(instead)
    with pytest.raises(DataError, match=r"version 3 cannot be assembled: .*adapter_model\.safetensors"):
        run.reach(3, newer_than=2)
    run.learner.steps_done = 3
    run.ask_for_full(3)
    run.publisher.answer_requests()
    again = run.reach(4, newer_than=2)
    assert (again.version.version, again.version.kind, again.version.step, again.problems) == (4, "full", 3, ())
    run.assert_whole(again)
    assert run.step(4)["publish/full"] == 0


def test_a_start_goes_on_without_a_complete_version_and_pruned_ones_are_not_missed(
    adapted: Callable[..., Adapted],
) -> None:
    run = adapted(keep_versions=2)
    for step in (1, 2, 3):
        run.step(step)
    run.start()  # from step 0 again: what came after is withdrawn, and version 0 is what it holds
    assert [v.withdrawn_to for v in run.versions()] == [None, 0, 0, 0, 0], "the last fences the first start off"
    for step in (1, 2, 3):
        run.step(step)
        run.assert_whole(run.reach(len(run.versions()) - 1, cache=f"late-{step}"))
    assert [(v.version, v.kind) for v in run.versions() if not v.pruned] == [
        (0, "full"),
        (6, "adapter"),
        (7, "adapter"),
    ]


def test_what_cannot_be_published_as_an_adapter_is_refused_with_the_reason(adapted: Callable[..., Adapted]) -> None:
    with pytest.raises(ValueError, match="publish_mode adapter publishes the adapter: set lora_rank"):
        adapted(lora_rank=0)
    with pytest.raises(ValueError, match="publish_dtype is bfloat16, expected none"):
        adapted(publish_dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"float32; the trainer computes with it in bfloat16: expected dtype float32"):
        adapted(dtype="bfloat16")
