"""Router replay: the routers of a mixture of experts repeat the engine's choices (R3, arXiv 2510.11370).

    router's logits ▸ softmax p, with gradient ─▶ top-k of p            the model's own choice
                                               └▶ the engine's experts  where the row has them
                                                  ▸ their p, normalized and scaled by the model's own code ▸ experts

Only the indices are replaced, inside the call of `topk` that chooses; what a model does with the values before and behind it
stays its own code. Where the engine's choice is the model's own, in its order, nothing changes, bit for bit. A token without a
known choice gets the model's own.

    suffix _NK  token, expert of the token
"""

from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from shared.errors import ConfigError
from shared.weights.routers import routers_of
from trainer.trees.experts import RouterShape, RowExperts
from trainer.trees.packing import Row

_OF_MODEL: WeakKeyDictionary[PreTrainedModel, "RouterReplay"] = WeakKeyDictionary()


class InUse(NamedTuple):
    """A row whose experts routers repeat, and the tokens of it that this process has."""

    row: Row | None
    experts: RowExperts | None
    here: slice


class RouterReplay:
    """The routers of a model, or of one of its stages (`keep`). They repeat the experts of the row that `use` names until it
    names another one: activation checkpointing calls them again in the backward.

    `counts`: over the forwards with gradient since `restart`, of tokens as often as records have them: all tokens, those with a
    known choice; and, over the layers that are here, the experts of these, and those of them that the router would not have
    chosen.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._kind = model.config.model_type
        every = routers_of(model)
        self._layers = [layer for layer, _ in every]
        self._routers: list[tuple[int, nn.Module]] = list(enumerate(router for _, router in every))
        config, first = model.config.get_text_config(), self._routers[0][1]
        self.shape = RouterShape(
            config.num_hidden_layers, len(self._layers), config.num_experts_per_tok, _num_experts(first)
        )
        self._row: Row | None = None
        self._experts: RowExperts | None = None
        self._here = slice(None)
        self._uncounted: set[int] = set()
        self.counts = torch.zeros(4, dtype=torch.float64)
        self._replaced: _Replaced | None = None  # of the router that computes now
        for index, router in self._routers:
            router.register_forward_pre_hook(partial(self._begin, index))
            router.register_forward_hook(partial(self._end, index), always_call=True)

    def keep(self, model: PreTrainedModel) -> None:
        """Those routers alone that `model` still has. Each retains its number in the whole model: its part of a row's experts."""
        present = set(model.modules())
        self._routers = [(index, router) for index, router in self._routers if router in present]

    @property
    def has_routers(self) -> bool:
        """False on a stage without experts."""
        return bool(self._routers)

    def restart(self) -> None:
        """Begin to count anew."""
        self.counts = torch.zeros_like(self.counts)

    def use(self, row: Row, here: slice) -> None:
        """For the tokens `here` of the row, whose experts are this model's (`check_routed`)."""
        self._row, self._experts, self._here = row, row.experts, here
        counted = torch.is_grad_enabled()
        known = counted and row.experts is not None
        self._uncounted = {index for index, _ in self._routers} if known else set()
        if counted:
            self._add(0, row.copies_N[here].sum())
        if row.experts is None:
            return
        if counted:
            replayed = (row.copies_N * row.experts.given_N)[here].sum()
            self._add(1, replayed)
            self._add(2, replayed * (len(self._routers) * self.shape.top_k))

    @property
    def in_use(self) -> "InUse":
        """What `use` was called with last."""
        return InUse(self._row, self._experts, self._here)

    def use_again(self, earlier: "InUse") -> None:
        """Before a backward that follows the forward of another row. Nothing is counted again."""
        self._row, self._experts, self._here = earlier
        self._uncounted = set()

    def choices(self, index: int) -> tuple[Tensor, Tensor] | None:
        """[tokens, experts of a token] and which tokens have any, of the router with this number; None: the row has none."""
        if self._experts is None:
            return None
        of_all_layers = self._experts.experts_NC.shape[1] == self.shape.layers * self.shape.top_k
        return self._experts.of_layer(self._layers[index] if of_all_layers else index, self.shape.top_k, self._here)

    def all_choices(self) -> list[tuple[Tensor, Tensor]]:
        """Of each router that is here; []: the row has none."""
        of_each = (self.choices(index) for index, _ in self._routers)
        return [one for one in of_each if one is not None]

    def _begin(self, index: int, router: nn.Module, args: Any) -> None:
        known = self.choices(index)
        if known is not None:
            self._replaced = _Replaced(*known, num_experts=self.shape.num_experts)
            self._replaced.__enter__()  # type: ignore[no-untyped-call]  # of torch

    def _end(self, index: int, router: nn.Module, args: Any, output: Any) -> None:
        replaced, self._replaced = self._replaced, None
        if replaced is None:
            return
        replaced.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # of torch
        if output is not None and len(replaced.own) != 1:  # None: it raised
            raise ConfigError(
                f"model type {self._kind}: its routers do not choose {replaced.experts_NK.shape[-1]} experts by one topk over "
                "them; expected router_replay false, or engines that serve this model"
            )
        if index in self._uncounted:
            self._uncounted.remove(index)
            self._count(replaced.own[0], replaced.experts_NK, replaced.given_N)

    @torch.no_grad()
    def _count(self, own_NK: Tensor, experts_NK: Tensor, given_N: Tensor) -> None:
        assert self._row is not None, "`use` named it"
        differing_N = (own_NK[:, :, None] != experts_NK[:, None]).all(-1).sum(-1) * given_N
        self._add(3, (self._row.copies_N[self._here] * differing_N).sum())

    def _add(self, place: int, value: Tensor) -> None:
        self.counts = self.counts.to(value.device)
        self.counts[place] += value


def router_replay(model: PreTrainedModel) -> RouterReplay | None:
    """That of the model, always the same one; None for a model without routers whose logits transformers can record."""
    if model not in _OF_MODEL:
        if not routers_of(model):
            return None
        _OF_MODEL[model] = RouterReplay(model)
    return _OF_MODEL[model]


def replay_metrics(counts: Tensor) -> dict[str, float]:
    """Of `RouterReplay.counts`, summed over processes; {} if nothing was replayed."""
    tokens, replayed, choices, differing = counts.tolist()
    if not replayed:
        return {}
    return {
        "experts/replayed_fraction": replayed / tokens,
        "experts/replay_differs_fraction": differing / choices,
    }


def _num_experts(router: nn.Module) -> int:
    weight = getattr(router, "weight", None)
    return int(getattr(router, "num_experts", None) or (0 if weight is None else weight.shape[0]))


class _Replaced(TorchFunctionMode):
    """Inside, `topk` over all experts returns those of `experts_NK` where they are known, and their values. `own`: its own."""

    def __init__(self, experts_NK: Tensor, given_N: Tensor, *, num_experts: int) -> None:
        super().__init__()
        self.experts_NK, self.given_N, self._num_experts = experts_NK, given_N, num_experts
        self.own: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or args[0].shape != (len(self.given_N), self._num_experts):
            return result
        if result.indices.shape != self.experts_NK.shape:
            return result
        self.own.append(result.indices)
        indices_NK = torch.where(self.given_N[:, None], self.experts_NK, result.indices)
        return torch.return_types.topk((args[0].gather(-1, indices_NK), indices_NK))
