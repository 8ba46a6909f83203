"""What is private in torch, Accelerate and transformers is there, takes what it is given, and is used in one file alone.

A failure after an upgrade names what the new version has renamed or changed; `trainer/process/private_apis.py` says what it
is for.
"""

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from types import SimpleNamespace

import peft
import pytest
import torch
from accelerate import PartialState
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tests.conftest import ROOT
from trainer.process import private_apis
from trainer.process.parallel import Parallel
from trainer.process.private_apis import FLASH, REDISTRIBUTE, PrivateMissing, flash_kernel, required

HOME = "trainer/process/private_apis.py"
KERNELS = {
    FLASH: "Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, "
    "float? scale=None) -> (Tensor output, Tensor logsumexp)",
    f"{FLASH}_backward": "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value)",
}


@pytest.mark.parametrize("name", KERNELS)
def test_torch_has_the_flash_kernels_for_cpus(name: str) -> None:
    schema = str(required(torch.ops.aten, f"{name}.default._schema", "attention by_node"))
    assert schema == f"aten::{name}({KERNELS[name]}", f"torch.ops.aten.{name} has changed"


def test_torch_has_the_products_of_onednn() -> None:
    schema = str(required(torch.ops.mkldnn, f"{private_apis.ONEDNN}.default._schema", "products by oneDNN"))
    expected = "Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y"
    assert schema == f"mkldnn::{private_apis.ONEDNN}({expected}"


def test_torch_makes_a_group_of_others_from_these_arguments() -> None:
    helper = required(distributed_c10d, "_new_process_group_helper", "a broadcast")
    given = inspect.signature(helper).bind(2, 0, [], "gloo", None, group_name="g", timeout=None)
    first = ["group_size", "group_rank", "global_ranks_in_group", "backend", "store"]
    assert list(given.arguments)[:5] == first, "torch's _new_process_group_helper has changed"
    assert isinstance(required(distributed_c10d, "_world.pg_group_ranks", "a broadcast"), dict)


def test_a_sharded_module_has_what_is_reset_after_a_forward(alone: Parallel) -> None:
    module = fully_shard(torch.nn.Linear(2, 2), mesh=alone.mesh["shard"])
    for _ in range(2):  # without a backward, the second forward would begin in the state of the first
        with torch.no_grad():
            module(torch.zeros(1, 2))
        private_apis.end_sharded_forward(module)
        state = module._get_fsdp_state()
        parts = [state, *private_apis._parameter_groups(state, "a test")]
        assert [part._training_state.name for part in parts] == ["IDLE", "IDLE"]
        assert state._state_ctx.iter_forward_root is None


def test_tensors_stand_in_the_place_of_parameters_and_go_again() -> None:
    module = torch.nn.Linear(2, 2, bias=False)
    weight = module.weight
    with private_apis.with_tensors(module, {"weight": 2 * weight}):
        assert torch.equal(module(torch.eye(2)), 2 * weight.T)
    assert module.weight is weight


def test_an_older_torch_has_one_group_of_parameters_and_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.11: `_fsdp_param_group`, which may be None, and a limit of recompilations for all functions."""
    assert private_apis._parameter_groups(SimpleNamespace(_fsdp_param_group="a group"), "a test") == ["a group"]
    assert private_apis._parameter_groups(SimpleNamespace(_fsdp_param_group=None), "a test") == []
    with pytest.raises(PrivateMissing, match="_fsdp_param_group"):
        private_apis._parameter_groups(SimpleNamespace(), "a test")
    assert private_apis.recompile_options(64) == {"recompile_limit": 64}
    monkeypatch.setattr(torch, "compile", lambda model, *, backend: model)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    assert private_apis.recompile_options(64) == {}
    assert torch._dynamo.config.recompile_limit == 64


def test_torch_logs_its_redistributions_under_the_silenced_name() -> None:
    assert importlib.util.find_spec(REDISTRIBUTE) is not None, f"torch has renamed {REDISTRIBUTE}"


def test_accelerate_can_forget_its_group() -> None:
    assert callable(required(PartialState, "_reset_state", "a second training in one process"))


def test_transformers_models_have_what_is_read_of_them() -> None:
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    model = LlamaForCausalLM(config)
    assert isinstance(model, PreTrainedModel)
    assert private_apis.layer_class_names(model) == ("LlamaDecoderLayer",), "transformers has renamed _no_split_modules"
    assert private_apis.attention_name(model) == "sdpa"
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    (layer,) = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    private_apis.wrap_layer_checkpoint(layer, lambda own, *given: (own, given))
    assert layer._gradient_checkpointing_func(1)[1] == (1,)


def test_a_layer_of_peft_answers_without_its_adapter_and_keeps_it_trained() -> None:
    base = torch.nn.Linear(3, 2)
    layer = peft.tuners.lora.Linear(base, "default", peft.LoraConfig(init_lora_weights=False), r=2, lora_alpha=8)
    x_N3 = torch.ones(1, 3)
    expected = layer(x_N3)
    trained = [parameter.requires_grad for parameter in layer.parameters()]
    private_apis.switch_adapter(layer, on=False)
    assert torch.equal(layer(x_N3), base(x_N3))
    assert [parameter.requires_grad for parameter in layer.parameters()] == trained
    private_apis.switch_adapter(layer, on=True)
    assert torch.equal(layer(x_N3), expected)
    assert not torch.equal(layer(x_N3), base(x_N3))


def test_a_kernel_that_is_missing_is_named_when_it_is_called() -> None:
    kernel = flash_kernel("_flash_of_another_version")
    with pytest.raises(PrivateMissing, match=r"no torch\.ops\.aten\._flash_of_another_version, .* attention by_node"):
        kernel(torch.zeros(1), scale=1.0)


def test_an_attribute_that_is_missing_is_named() -> None:
    with pytest.raises(
        PrivateMissing, match=r"no torch\.distributed\.distributed_c10d\._world\.renamed, .* a broadcast"
    ):
        required(distributed_c10d, "_world.renamed", "a broadcast")


def private_uses(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of private attributes of other objects than `self` and `cls`, and of private modules and names imported."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in {"self", "cls"} and (owner, node.attr) != ("os", "_exit"):
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from ((node.lineno, name) for name in names if is_private(name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_parts_are_used_in_one_file() -> None:
    found = {}
    for path in sorted((ROOT / "trainer").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        uses = [] if name == HOME else list(private_uses(path.read_text(encoding="utf-8")))
        if uses:
            found[name] = uses
    assert found == {}, f"put them into {HOME}, with what they are for"


def test_a_private_use_is_seen() -> None:
    text = "from torch.distributed._x import y\nimport os\nos._exit(0)\nself._a = 1\nmodel._flag = torch.ops.aten._k()"
    assert sorted(private_uses(text)) == [(1, "_x"), (5, "_flag"), (5, "_k")]
