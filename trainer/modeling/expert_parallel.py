"""Expert parallelism: the processes of one "ep" line hold all experts together, and send each other the tokens.

    experts     each on one process of the line; FSDP shards its parameters over the processes that hold the same ones
    all others  sharded over all processes, as without it

    router ▸ (token, expert) pairs by expert ─all-to-all─▶ this process's experts ─all-to-all─▶ weighted, summed for each token
             counts first, then rows of as many as chose each

Every process sends its own tokens: those of its rows, or of its slice of a row. Processes that share a layer have slices
too (`sequence_parallel.py`), or, in models that need whole rows, each sends its part of the row. The backward sends the
gradients the opposite way. A process that receives no token computes one row of zeros and drops the result, so that its
backward takes part in every exchange.

    suffix _N  token      _NK  token, chosen expert      _P  pair of both, by expert      _R  received pair
           _XL  process, expert that it holds
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import PreTrainedModel

from shared.errors import ConfigError
from trainer.modeling.all_to_all import exchange
from trainer.modeling.context_parallel import of_all
from trainer.process.parallel import Parallel
from trainer.process.peers import Peers, peers_of
from trainer.process.private_apis import with_tensors
from trainer.process.sharding import is_empty

OF_EXPERTS = "grouped_gemm"  # transformers' plan entry for parameters with one slice per expert
DISPATCHED = "ep_dispatch_experts"  # … and for the module that has them


def expert_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules of experts that the model's plan names, by their names in `base_model`; none for a model without experts."""
    plan = getattr(model.config, "base_model_ep_plan", None) or {}
    return {
        name: module
        for name, module in model.base_model.named_modules()
        if plan.get(".".join("*" if part.isdigit() else part for part in name.split("."))) == DISPATCHED
    }


def spread_experts(model: PreTrainedModel, parallel: Parallel) -> None:
    """Move `model` to the device, unless it is empty, and split its experts in place over `parallel.experts`. None: no-op.

    Call before `cut_layers` and `shard_model`.
    Raises ConfigError for a model without a plan for its experts, and for experts that cannot be split evenly.
    """
    mesh = parallel.experts
    if mesh is None:
        return
    line = mesh["ep"]
    spread: dict[str, Any] = expert_modules(model)
    if not spread and (parallel.pipeline is None or not _has_plan(model)):  # a stage may have dense layers alone
        raise ConfigError(
            f"ep_size is {line.size()}, but model type {model.config.model_type} has no plan for expert parallelism; expected "
            "ep_size 1"
        )
    if not is_empty(model):
        nn.Module.to(model, parallel.device)
    tp = parallel.mesh["tp"]
    layer = None if tp.size() == 1 else peers_of(tp, parallel.device)
    place = peers_of(line, parallel.device)
    for name, module in spread.items():
        _check(name, module, model, line.size())
        for key, parameter in list(module.named_parameters()):
            own = distribute_tensor(parameter.detach(), line, [Shard(0)], src_data_rank=None)
            setattr(module, key, nn.Parameter(own, requires_grad=parameter.requires_grad))
        module.num_experts //= line.size()
        # FSDP averages their gradients over fewer processes than those of the other parameters
        share = mesh["same"].size() / parallel.num_shards
        module.forward = SpreadExperts(module, module.forward, place, layer, share)


def _has_plan(model: PreTrainedModel) -> bool:
    return DISPATCHED in (getattr(model.config, "base_model_ep_plan", None) or {}).values()


def _check(name: str, module: Any, model: PreTrainedModel, size: int) -> None:
    if module.num_experts % size:
        raise ConfigError(f"ep_size is {size}, but num_experts is {module.num_experts}; expected a divisor of it")
    for key, parameter in module.named_parameters():
        if "." in key or len(parameter) != module.num_experts:
            raise ConfigError(
                f"ep_size is {size}, but {name}.{key} of model type {model.config.model_type} has no part for each expert; "
                "expected ep_size 1"
            )


@dataclass(frozen=True, slots=True)
class SpreadExperts:
    """The forward of a module of experts whose `own` forward has this process's experts: (N, H), (N, K), (N, K) ▸ (N, H)."""

    module: Any
    own: Callable[[Tensor, Tensor, Tensor], Tensor]
    place: Peers  # processes that hold all experts together, and exchange their tokens
    layer: Peers | None  # processes that share each layer, and have the same tokens; None: this one's are its own
    gradient_share: float

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        if self.layer is None:
            return self._of_tokens(hidden_states, top_k_index, top_k_weights)
        count = len(hidden_states)
        own_N = torch.arange(count, device=hidden_states.device).tensor_split(self.layer.size)[self.layer.rank]
        hidden_NH, weight_NK = (_summed_backward(x, self.layer)[own_N] for x in (hidden_states, top_k_weights))
        return of_all(self._of_tokens(hidden_NH, top_k_index[own_N], weight_NK), own_N, count, self.layer)

    def _of_tokens(self, hidden_NH: Tensor, expert_NK: Tensor, weight_NK: Tensor) -> Tensor:
        result_NKH = self._results(hidden_NH, expert_NK)
        return (result_NKH * weight_NK[..., None]).sum(1).to(hidden_NH.dtype)

    def _results(self, hidden_NH: Tensor, expert_NK: Tensor) -> Tensor:
        """Of each pair, by token. No name holds the rows of an exchange longer than their one use."""
        experts_P, order_P = expert_NK.flatten().sort(stable=True)
        received_XL, sent, received = self.counts(experts_P)
        rows_RH = exchange(hidden_NH[order_P // expert_NK.shape[1]], self.place, sent, received)
        computed_RH = self._computed(rows_RH, received_XL)
        del rows_RH
        result_NKH = _unsorted(exchange(computed_RH, self.place, received, sent), order_P)
        return result_NKH.view(*expert_NK.shape, hidden_NH.shape[1])

    def counts(self, experts_P: Tensor) -> tuple[Tensor, list[int], list[int]]:
        """Pairs that this process receives for each of its experts, and numbers that it sends to and receives from each."""
        num_experts = self.place.size * int(self.module.num_experts)
        sent_XL = torch.bincount(experts_P, minlength=num_experts).view(self.place.size, -1)
        received_XL = torch.empty_like(sent_XL)
        dist.all_to_all_single(received_XL, sent_XL, group=self.place.group)
        sent, received = torch.stack([sent_XL.sum(1), received_XL.sum(1)]).tolist()
        return received_XL, sent, received

    def _computed(self, rows_RH: Tensor, received_XL: Tensor) -> Tensor:
        """Each received row by its expert; their order is by process, then by expert."""
        processes, held = received_XL.shape
        expert_R = torch.arange(held, device=rows_RH.device).repeat(processes)
        expert_R = expert_R.repeat_interleave(received_XL.flatten(), output_size=len(rows_RH))
        padded_RH, nothing = rows_RH, len(rows_RH) == 0
        if nothing:
            padded_RH, expert_R = rows_RH.sum(0, keepdim=True), expert_R.new_zeros(1)
        with with_tensors(self.module, _own_parameters(self.module, self.gradient_share)):
            out_RH = self.own(padded_RH, expert_R[:, None], padded_RH.new_ones(len(padded_RH), 1))
        return out_RH[:0] if nothing else out_RH


def _own_parameters(module: nn.Module, gradient_share: float) -> dict[str, Tensor]:
    """This process's part of each, whose gradient is multiplied."""
    parts = {name: p.to_local() if isinstance(p, DTensor) else p for name, p in module.named_parameters()}
    return {name: _ScaledBackward.apply(part, gradient_share) for name, part in parts.items()}  # type: ignore[no-untyped-call]  # untyped in torch's stubs


class _ScaledBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def _unsorted(x_PH: Tensor, order_P: Tensor) -> Tensor:
    result: Tensor = _Unsorted.apply(x_PH, order_P)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


class _Unsorted(torch.autograd.Function):
    """Row `order_P[i]` of the result is row `i`. `Tensor.index_copy` would save the rows until the backward, which needs none."""

    @staticmethod
    def forward(ctx: Any, x_PH: Tensor, order_P: Tensor) -> Tensor:
        ctx.save_for_backward(order_P)
        return torch.empty_like(x_PH).index_copy_(0, order_P, x_PH)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (order_P,) = ctx.saved_tensors
        return grad.index_select(0, order_P), None


def _summed_backward(x: Tensor, peers: Peers) -> Tensor:
    result: Tensor = _SummedBackward.apply(x, peers)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


class _SummedBackward(torch.autograd.Function):
    """The same values; each peer uses a part of them, and the gradient is the sum over the parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        whole = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.peers.group)
        return whole, None
