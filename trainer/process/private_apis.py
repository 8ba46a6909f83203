"""Private functions and attributes of torch, Accelerate and transformers. All that the trainer uses stand here.

Each says what it is for, and what is done where it is missing. `tests/trainer/test_private_apis.py` fails with the name of what
another version has renamed or changed, and finds private uses in other files.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shared.errors import TandemError

log = logging.getLogger(__name__)

REDISTRIBUTE = "torch.distributed.tensor._redistribute"
ONEDNN = "_linear_pointwise"
FLASH = "_scaled_dot_product_flash_attention_for_cpu"


class PrivateMissing(TandemError, RuntimeError):
    """This version of a library lacks something private that the trainer needs."""


def required(owner: Any, path: str, purpose: str) -> Any:
    """The attribute at a dotted `path`. Raises PrivateMissing, which names it."""
    value = owner
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise missing(f"{getattr(owner, '__name__', type(owner).__name__)}.{path}", purpose) from None
    return value


def missing(name: str, purpose: str) -> PrivateMissing:
    versions = ", ".join(f"{library} {version(library)}" for library in ("torch", "accelerate", "transformers"))
    return PrivateMissing(
        f"there is no {name}, which is needed for {purpose}, in {versions}; expected the versions of pyproject.toml"
    )


# ------------------------------------------------------------------ attention node by node (modeling/node_attention.py)


def flash_kernel(name: str) -> Callable[..., Any]:
    """A flash kernel for CPUs that returns the log-sum-exp too: results over disjoint keys are merged by it.

    Missing: a function that raises PrivateMissing, so that attention `by_node` is refused and the next one is tried.
    """
    kernel: Callable[..., Any] | None = getattr(torch.ops.aten, name, None)
    return kernel or partial(_refuse, name)


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise missing(f"torch.ops.aten.{name}", "attention by_node")


flash_for_cpu = flash_kernel(FLASH)
flash_for_cpu_backward = flash_kernel(f"{FLASH}_backward")


# ------------------------------------------------------------------ products (modeling/products.py)


def onednn_linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """x @ weightᵀ + bias by oneDNN, for strided float32 matrices: torch's public functions choose MKL.

    Missing: PrivateMissing, and products stay MKL's.
    """
    kernel = required(torch.ops.mkldnn, ONEDNN, "products by oneDNN")
    result: torch.Tensor = kernel(x, weight_OI, bias_O, "none", [], "")
    return result


# ------------------------------------------------------------------ sharded modules (modeling/forward_choice.py)


def end_sharded_forward(module: Any) -> None:
    """Reset an FSDPModule after a forward without a backward, or one that raised: it would refuse the next forward.

    Missing: PrivateMissing; ways of computing a sharded model cannot be compared then.
    """
    purpose = "comparing ways to compute a sharded model"
    state = required(module, "_get_fsdp_state", purpose)()
    context = required(state, "_state_ctx", purpose)
    for name in ("iter_forward_root", "post_backward_final_callback_queued"):
        required(context, name, purpose)
    for part in (state, *_parameter_groups(state, purpose)):
        part._training_state = required(type(required(part, "_training_state", purpose)), "IDLE", purpose)
    context.iter_forward_root = None
    context.post_backward_final_callback_queued = False
    module.reshard()


def _parameter_groups(state: Any, purpose: str) -> list[Any]:
    """Of an FSDPState. torch 2.11 has one or None, later versions have a list."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        group = required(state, "_fsdp_param_group", purpose)
        groups = [] if group is None else [group]
    return list(groups)


def recompile_options(limit: int) -> dict[str, int]:
    """Arguments of torch.compile for a number of recompilations. torch 2.11 has one limit for all functions, which is raised."""
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return {"recompile_limit": limit}
    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
    return {}


# ------------------------------------------------------------------ broadcasts (publishing/send.py)


def group_of_others(store: dist.Store, name: str, size: int, backend: str, timeout: Any) -> dist.ProcessGroup:
    """A group of rank 0 here and processes that belong to no launch with this one: torch's public functions make none.

    Missing: PrivateMissing; the sender answers with it, and engines load the version from disk.
    """
    purpose = "a broadcast to engines"
    new_group = required(distributed_c10d, "_new_process_group_helper", purpose)
    ranks = required(distributed_c10d, "_world.pg_group_ranks", purpose)
    group: dist.ProcessGroup
    group, _ = new_group(
        size,
        0,
        [],
        distributed_c10d.Backend(backend),
        dist.PrefixStore(name, store),
        group_name=distributed_c10d.GroupName(name),
        timeout=timeout,
    )
    ranks[group] = {rank: rank for rank in range(size)}
    return group


# ------------------------------------------------------------------ spread experts (modeling/expert_parallel.py)


@contextmanager
def with_tensors(module: Any, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """In this context these tensors, computed from the module's parameters, stand in their place.

    torch's public function for it calls the module's own forward, which is the one that needs it. Missing: PrivateMissing, at
    the first forward.
    """
    parameters = required(module, "_parameters", "experts that are spread over processes")
    own = {name: parameters[name] for name in tensors}
    parameters.update(tensors)
    try:
        yield
    finally:
        parameters.update(own)


# ------------------------------------------------------------------ the rest


def silence_redistribution() -> None:
    """No warning of every redistribution over two dimensions: checkpoints, publications and gradient norms need them.

    Missing, a logger of another name: the warnings are logged.
    """
    logging.getLogger(REDISTRIBUTE).setLevel(logging.ERROR)


def forget_group(state: Any) -> None:
    """Of Accelerate's PartialState, a singleton that would outlive the process group it describes.

    Missing: a warning; a process that trains once does not need it.
    """
    reset: Callable[[], None] | None = getattr(state, "_reset_state", None)
    if reset is None:
        log.warning("Accelerate's PartialState has no _reset_state: a second training in this process would fail")
    else:
        reset()


def layer_class_names(model: Any) -> tuple[str, ...]:
    """Class names of the layers of a transformers model, as the model itself gives them: the units of sharding.

    Missing: none, and `shard_model` refuses the model unless the launcher's settings name the classes.
    """
    return tuple(sorted(getattr(model, "_no_split_modules", None) or ()))


def attention_name(model: Any) -> str:
    """The attn_implementation in force, of a transformers model. Missing: PrivateMissing, when a model is loaded."""
    return str(required(model.config, "_attn_implementation", "choosing an attention"))


def experts_kernel(model: Any) -> str | None:
    """The experts_implementation in force, of a transformers model. Missing: None, and eager experts are not refused."""
    return getattr(model.config, "_experts_implementation", None)


def switch_adapter(layer: Any, *, on: bool) -> None:
    """Let PEFT's layer around a linear one answer with or without its adapter; `requires_grad` stays.

    Missing: PrivateMissing, when the model below the adapters is asked for.
    """
    required(layer, "_disable_adapters", "the model below its adapters")
    layer._disable_adapters = not on


def wrap_layer_checkpoint(layer: Any, wrapper: Callable[..., Any]) -> None:
    """Let `wrapper`, with the layer's own function first, checkpoint a layer of transformers: it can be set nowhere else.

    Missing: PrivateMissing, when activation_checkpointing is on.
    """
    own = required(layer, "_gradient_checkpointing_func", "activation_checkpointing without dropout")
    layer._gradient_checkpointing_func = partial(wrapper, own)
