"""Sequence parallelism of tensor-parallel layers: outside of attention and MLP each process has a slice of the tokens.

    embedding ▸ slice ─▶ norm ▸ whole ▸ q k v, attention, o ▸ slice ─▶ + ▸ norm ▸ whole ▸ gate up, down ▸ slice ─▶ +
    … ▸ whole ─▶ last norm, head

Megatron's (Korthikanti et al. 2022, arXiv 2205.05198): a sum over processes is a reduce-scatter and an all-gather, between which
norms and sums of a layer take a slice each. Blocks are of three kinds:

    summed    matrices cut by columns, one by rows: its parts are added and scattered at once; in the backward the
              gradients of the gathered input are. All tensors are local, and nothing in the block is communicated
    slice     experts by ep_size (`expert_parallel.py`) and their routers, which compute token by token: each process has its
              slice, and sends each of its tokens once. Experts that all tokens share may be a summed block inside
    whole     others, such as experts by tp_size: the same result on every process, of which each takes its slice

A parameter that a process uses for its slice, or for its heads, has a part of its gradient there: they are added once, where
FSDP2 reduces it. For the backward a block keeps its slice, and gathers the row again. Tokens are padded with zeros, which get
no gradient, to a multiple of the processes.

    suffix _N  token of the row      _S  token of a slice
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from transformers import PreTrainedModel

from trainer.modeling.expert_parallel import SpreadExperts
from trainer.modeling.pipeline_parallel import LAYERS, Elsewhere, after_layers, is_chain
from trainer.modeling.row_slices import (
    GatheredAgain,
    OfWholeRow,
    Slices,
    own_slice,
    own_tokens,
    whole_row,
    with_padding,
)
from trainer.modeling.trainable import ADAPTER, LoraLayer
from trainer.process.peers import Peers
from trainer.process.private_apis import with_tensors

COLUMNS, ROWS, COPIED = "colwise", "rowwise", "replicated_with_grad_allreduce"  # transformers' plan
TOKENS_OF_ROW = "tokens_of_row"  # an argument of the layers below
_CUTS: Mapping[str, Mapping[str, Placement]] = {  # of a linear layer, PEFT's with its own parts; all else is whole
    COLUMNS: {f"{part}{name}": Shard(0) for part in ("", "base_layer.") for name in ("weight", "bias")}
    | {f"lora_B.{ADAPTER}.weight": Shard(0)},
    ROWS: {f"{part}weight": Shard(1) for part in ("", "base_layer.")} | {f"lora_A.{ADAPTER}.weight": Shard(1)},
}


class BlockKind(StrEnum):
    """As above."""

    SUMMED = "summed"
    SLICE = "slice"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """How one layer, or the last norm, computes slices. `blocks`: the modules between its norms, and summed ones inside of them.
    `placements`: of its parameters that are used as local tensors, by name.
    """

    blocks: Mapping[str, BlockKind]
    placements: Mapping[str, Placement]


def layer_plans(
    model: PreTrainedModel, plan: Mapping[str, str], adapted: Mapping[str, LoraLayer]
) -> dict[str, LayerPlan] | None:
    """By the names of the layers, and of the norm after them, in `base_model`. None: the layers of this model get whole rows.

    `plan`: {module of `base_model`: split}. Slices need a chain of layers (`is_chain`), layers that are norms around blocks, and
    no dropout.
    """
    layers: Any = getattr(model.base_model, LAYERS, None)
    drops = model.training and any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    if layers is None or drops or not is_chain(model):
        return None
    own = {f"{LAYERS}.{index}": layer for index, layer in enumerate(layers) if not isinstance(layer, Elsewhere)}
    plans = {name: _layer_plan(name, layer, plan, adapted) for name, layer in own.items()}
    known = {name: of for name, of in plans.items() if of is not None}
    if len(known) < len(plans):
        return None
    last = after_layers(model)
    norm = getattr(model.base_model, last[0]) if len(last) == 1 else None
    if norm is not None and _is_norm(norm):
        known[last[0]] = LayerPlan({}, {name: Replicate() for name, _ in norm.named_parameters()})
    return known


def _is_norm(module: nn.Module) -> bool:
    """Whether all that it has are vectors: it computes token by token."""
    sizes = {parameter.ndim for parameter in module.parameters()}
    return sizes == {1} and next(module.children(), None) is None


def _layer_plan(
    name: str, layer: nn.Module, plan: Mapping[str, str], adapted: Mapping[str, LoraLayer]
) -> LayerPlan | None:
    blocks: dict[str, BlockKind] = {}
    placements: dict[str, Placement] = {}
    if next(layer.parameters(recurse=False), None) is not None:
        return None
    for child, module in layer.named_children():
        inside = _inside(f"{name}.{child}", plan)
        if any(isinstance(part.forward, SpreadExperts) for part in module.modules()):
            of_experts = _experts_plan(f"{name}.{child}", module, inside, adapted)
            if of_experts is None:
                return None
            blocks |= {f"{child}.{key}": kind for key, kind in of_experts.blocks.items()} | {child: BlockKind.SLICE}
            placements |= {f"{child}.{key}": of for key, of in of_experts.placements.items()}
        elif inside:
            of_block = _summed_placements(f"{name}.{child}", module, inside, adapted)
            blocks[child] = BlockKind.WHOLE if of_block is None else BlockKind.SUMMED
            placements |= {f"{child}.{key}": of for key, of in (of_block or {}).items()}
        elif next(module.parameters(), None) is not None:
            if not _is_norm(module):
                return None
            placements |= {f"{child}.{key}": Replicate() for key, _ in module.named_parameters()}
    return LayerPlan(blocks, placements)


def _inside(name: str, plan: Mapping[str, str]) -> dict[str, str]:
    return {part: cut for part, cut in plan.items() if part.startswith(f"{name}.")}


def _experts_plan(
    name: str, block: nn.Module, plan: Mapping[str, str], adapted: Mapping[str, LoraLayer]
) -> LayerPlan | None:
    """Of a block with experts that ep_size has spread, whose parameters stay; None: it may compute more than token by token."""
    if len(inspect.signature(block.forward).parameters) != 1:
        return None
    blocks: dict[str, BlockKind] = {}
    placements: dict[str, Placement] = {key: Replicate() for key, _ in block.named_parameters(recurse=False)}
    for child, module in block.named_children():
        inside = _inside(f"{name}.{child}", plan)
        if isinstance(module.forward, SpreadExperts):
            continue
        of_child: Mapping[str, Placement] | None = {key: Replicate() for key, _ in module.named_parameters()}
        if inside:
            of_child, blocks[child] = _summed_placements(f"{name}.{child}", module, inside, adapted), BlockKind.SUMMED
        if of_child is None:
            return None
        placements |= {f"{child}.{key}": of for key, of in of_child.items()}
    return LayerPlan(blocks, placements)


def _summed_placements(
    name: str, block: nn.Module, plan: Mapping[str, str], adapted: Mapping[str, LoraLayer]
) -> dict[str, Placement] | None:
    """Of all parameters of a block that is computed from local tensors alone; None for others."""
    if sorted(cut for cut in plan.values() if cut != COPIED).count(ROWS) != 1 or COLUMNS not in plan.values():
        return None
    # scalars of an activation, each of which sees the units of this process
    placements: dict[str, Placement] = {key: Replicate() for key, of in block.named_parameters() if of.numel() == 1}
    with_adapters = {id(layer) for layer in adapted.values()}
    for part, cut in plan.items():
        module = block.get_submodule(part.removeprefix(f"{name}."))
        is_linear = isinstance(module, nn.Linear) or id(module) in with_adapters
        if cut not in (COLUMNS, ROWS, COPIED) or is_linear != (cut != COPIED):
            return None
        cuts = _CUTS.get(cut, {})
        placements |= {
            f"{part.removeprefix(f'{name}.')}.{key}": cuts.get(key, Replicate()) for key, _ in module.named_parameters()
        }
    return placements if placements.keys() == dict(block.named_parameters()).keys() else None


def by_module(parameters: Mapping[str, Placement]) -> dict[str, dict[str, Placement]]:
    """{module: {parameter: placement}} of full names."""
    modules: dict[str, dict[str, Placement]] = {}
    for name, placement in parameters.items():
        owner, _, key = name.rpartition(".")
        modules.setdefault(owner, {})[key] = placement
    return modules


def use_slices(model: PreTrainedModel, plans: Mapping[str, LayerPlan], line: Peers) -> None:
    """Let the layers of `plans`, whose parameters are placed already, compute slices of rows."""
    row = _Row(line)
    classes: dict[type[nn.Module], type[nn.Module]] = {}
    parts: list[Any] = [model.base_model.get_submodule(name) for name in plans]
    for part, plan in zip(parts, plans.values(), strict=True):
        local = _LocalParts.of(part, plan, line)
        if not plan.blocks:
            row.last = local
            part.register_forward_pre_hook(row.enter_norm)
            continue
        kind = type(part)
        if kind not in classes:  # its own name: sharding knows layers by that
            classes[kind] = type(kind.__name__, (_SlicedLayer, kind), {"forward": _SlicedLayer.forward})
        part.__class__, part.local_parts = classes[kind], local
        for child, kind_of_block in plan.blocks.items():
            block = part.get_submodule(child)
            block.forward = _Block(local, block.forward, kind_of_block)
            linears: list[Any] = [module for module in block.modules() if isinstance(module, nn.Linear)]
            for linear in linears if kind_of_block is BlockKind.SUMMED else ():
                linear.forward = OfWholeRow(linear, linear.forward)
            spread: list[Any] = [module for module in block.modules() if isinstance(module.forward, SpreadExperts)]
            for experts in spread:
                experts.forward = replace(experts.forward, layer=None)
        part.register_forward_pre_hook(row.enter if part is parts[0] else row.go_on, with_kwargs=True)
    parts[-1].register_forward_hook(row.leave, always_call=True)


@dataclass(slots=True)
class _Row:
    """Of the forward in progress."""

    line: Peers
    tokens: int = 0
    last: "_LocalParts | None" = None  # of the norm after the layers
    _norm: ExitStack = field(default_factory=ExitStack)  # where its parameters are local

    def enter(
        self, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden, *rest = given
        self.tokens = hidden.shape[1]
        return (own_slice(hidden, self.line, summed=False), *rest), named | {TOKENS_OF_ROW: self.tokens}

    def go_on(
        self, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, named | {TOKENS_OF_ROW: self.tokens}

    def enter_norm(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        assert self.last is not None
        self._norm.enter_context(self.last.in_place())

    def leave(self, _: nn.Module, given: tuple[Any, ...], result: Tensor | None) -> Tensor | None:
        """`result` None: the forward has raised."""
        self._norm.close()
        return None if result is None else whole_row(result, self.line, self.tokens, summed=False)


class _SlicedLayer(nn.Module):
    """Before the class of a layer in the order of its methods; a checkpointed layer calls this again, with the same arguments."""

    local_parts: "_LocalParts"

    def forward(self, *given: Any, **named: Any) -> Any:
        self.local_parts.tokens = named.pop(TOKENS_OF_ROW)
        with self.local_parts.in_place():
            return super().forward(*given, **named)


@dataclass(slots=True)
class _LocalParts:
    """The parameters of a layer as local tensors, with gradients that are summed over the line unless they are cut."""

    line: Peers
    modules: list[tuple[nn.Module, dict[str, Placement]]]
    once: set[int]  # of the modules whose bias is added after a sum
    tokens: int = field(default=0)  # of the row that the layer computes

    @classmethod
    def of(cls, layer: nn.Module, plan: LayerPlan, line: Peers) -> "_LocalParts":
        found = [(layer.get_submodule(owner), of) for owner, of in by_module(plan.placements).items()]
        return cls(line, found, {id(module) for module, of in found if of.get("weight") == Shard(1)})

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Where the layer computes, in place of its parameters."""
        with ExitStack() as stack:
            for module, placements in self.modules:
                stack.enter_context(with_tensors(module, self._tensors(module, placements)))
            yield

    def _tensors(self, module: nn.Module, placements: Mapping[str, Placement]) -> dict[str, Tensor]:
        tensors = {}
        for name, placement in placements.items():
            parameter: Any = getattr(module, name)
            if parameter is None:
                continue
            assert isinstance(parameter, DTensor)
            kind = Partial() if placement == Replicate() else placement
            tensors[name] = parameter.to_local(grad_placements=[kind])
        if "bias" in tensors and id(module) in self.once and self.line.rank > 0:
            tensors["bias"] = tensors["bias"] * 0
        return tensors


@dataclass(frozen=True, slots=True)
class _Block:
    """The forward of a block. It takes and returns slices; the block's `own` forward may take whole rows."""

    layer: _LocalParts
    own: Callable[..., Any]
    kind: BlockKind

    def __call__(self, *given: Any, **named: Any) -> Any:
        if given:
            x: Tensor = given[0]
            result = self.own(self._input(x), *given[1:], **named)
        else:
            x = named["hidden_states"]
            result = self.own(**named | {"hidden_states": self._input(x)})
        if isinstance(result, Tensor):
            return self._output(result, x)
        return (self._output(result[0], x), *result[1:])

    def _input(self, x: Tensor) -> Tensor:
        line, tokens = self.layer.line, self.layer.tokens
        if self.kind is BlockKind.SLICE:
            here = own_tokens(tokens, line)
            return x[:, : here.stop - here.start]
        x_S = with_padding(x if x.ndim == 3 else x[None], tokens, line)  # experts get tokens, without a row
        x_N: Any = whole_row(x_S, line, tokens, summed=self.kind is BlockKind.SUMMED)
        if self.kind is BlockKind.SUMMED:
            x_N.slices = Slices(x_S.detach(), GatheredAgain(line, tokens))
        return x_N  # type: ignore[no-any-return]  # a Tensor with one more attribute

    def _output(self, result: Tensor, x: Tensor) -> Tensor:
        """Of the shape of `x`."""
        line, tokens = self.layer.line, self.layer.tokens
        if self.kind is BlockKind.SLICE:
            return with_padding(result, tokens, line)
        of_slice = own_slice(result, line, summed=self.kind is BlockKind.SUMMED)
        return of_slice[:, : x.shape[-2]].reshape(x.shape)


def routers_line(model: nn.Module) -> Peers | None:
    """The processes whose routers have a slice each of a row's tokens (`own_tokens`); None: they have whole rows."""
    blocks: list[Any] = [module.forward for module in model.modules() if isinstance(module.forward, _Block)]
    return next((block.layer.line for block in blocks if block.kind is BlockKind.SLICE), None)
