"""Pipeline parallelism: splits a model into stages of consecutive layers, one for each process of the "pp" dimension.

    first      embedding, layers 0 … a        takes token ids, sends hidden states
    between    layers a + 1 … b               takes hidden states, sends hidden states
    last       layers b + 1 …, norm, head     takes hidden states, has the log-probs

A stage is the whole transformers model with modules of other stages replaced by `Elsewhere`, which returns its input. So
parameters keep their names, in checkpoints too, and each stage makes its own positions and masks from the row. That such a
model computes what the whole model computes is checked before the cut: without layers it must return the hidden states that it
is given.

Where the cuts are: `shared/weights/stage_starts.py`.

Tied embeddings: first and last stage each hold the matrix, and add their gradients, so that both copies take the same steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from shared.errors import ConfigError
from shared.weights.stage_starts import stage_starts
from trainer.modeling.router_replay import router_replay
from trainer.modeling.stage_costs import stage_costs
from trainer.process.parallel import Parallel
from trainer.process.peers import Pipeline

LAYERS = "layers"  # of the base model, in transformers' plan
PROBE_TOKENS = 3


class Elsewhere(nn.Module):
    """A module of another stage. Returns its first argument. `weight` has the shape of an embedding's, without memory."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        weight = replaced.weight if isinstance(replaced, nn.Embedding) else None
        self.weight = None if weight is None else torch.empty(weight.shape, dtype=weight.dtype, device="meta")

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


@dataclass(frozen=True, slots=True)
class Stage:
    """This process's part of a model. `trained`: by stage, whether any parameter is. `shares_embedding`: the first and the last
    stage hold the embedding, which is the head, and this is one of them.
    """

    pipeline: Pipeline
    dtype: torch.dtype  # of hidden states
    width: int
    trained: tuple[bool, ...]
    shares_embedding: bool

    @property
    def is_first(self) -> bool:
        return self.pipeline.peers.rank == 0

    @property
    def is_last(self) -> bool:
        return self.pipeline.peers.rank == self.pipeline.peers.size - 1

    @property
    def sends_gradient(self) -> bool:
        """Whether an earlier stage trains."""
        return any(self.trained[: self.pipeline.peers.rank])

    @property
    def receives_gradient(self) -> bool:
        """Whether this or an earlier stage trains."""
        return not self.is_last and any(self.trained[: self.pipeline.peers.rank + 1])


def cut_stages(model: PreTrainedModel, parallel: Parallel, *, dtype: torch.dtype) -> Stage | None:
    """Reduce `model` in place to this process's stage; None for a single stage. Call before `cut_layers`.

    `dtype`: that layers compute in.
    Raises ConfigError for a model that is not a chain of layers, or has fewer layers than there are stages.
    """
    pipeline = parallel.pipeline
    if pipeline is None:
        return None
    peers = pipeline.peers
    before, after = _ends(model, peers.size)
    base: Any = model.base_model
    _check_chain(model, (*before, *after), peers.size)
    layers, head = base.layers, model.get_output_embeddings()
    starts = stage_starts(stage_costs(model, before, after), peers.size)
    embedding: Any = model.get_input_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    trained = tuple(
        any(p.requires_grad for part in parts for p in part.parameters())
        for parts in _parts(model, before, after, starts)
    )
    replay = router_replay(model)  # knows the routers of all stages
    first, last = peers.rank == 0, peers.rank == peers.size - 1
    for name in before:
        if not first and not (last and is_tied and getattr(base, name) is embedding):
            setattr(base, name, Elsewhere(getattr(base, name)))
    for index, layer in enumerate(layers):
        if not starts[peers.rank] <= index < starts[peers.rank + 1]:
            layers[index] = Elsewhere(layer)
    if not last:
        for name in after:
            setattr(base, name, Elsewhere(getattr(base, name)))
        if head is not None:
            model.set_output_embeddings(Elsewhere(head))
    if replay is not None:
        replay.keep(model)
    width = int(model.config.get_text_config().hidden_size)
    return Stage(pipeline, dtype, width, trained, shares_embedding=is_tied and (first or last))


def _parts(
    model: PreTrainedModel, before: Sequence[str], after: Sequence[str], starts: Sequence[int]
) -> list[list[nn.Module]]:
    """The modules of each stage."""
    base: Any = model.base_model
    head = model.get_output_embeddings()
    parts: list[list[nn.Module]] = [list(base.layers[start:end]) for start, end in pairwise(starts)]
    parts[0] += [getattr(base, name) for name in before]
    parts[-1] += [*(getattr(base, name) for name in after), *([] if head is None else [head])]
    return parts


def _ends(model: PreTrainedModel, size: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the base model's modules before and after its layers, by transformers' plan."""
    config = model.config
    plan: Mapping[str, Any] = getattr(config, "base_model_pp_plan", None) or {}
    names, base = list(plan), model.base_model
    if LAYERS not in names or any(not hasattr(base, name) for name in names):
        raise ConfigError(
            f"pp_size is {size}, but model type {config.model_type} has no plan for pipeline parallelism; expected pp_size 1"
        )
    place = names.index(LAYERS)
    return tuple(names[:place]), tuple(names[place + 1 :])


def after_layers(model: PreTrainedModel) -> tuple[str, ...]:
    """Names of the base model's modules after its layers, by transformers' plan; of a model that `is_chain`."""
    names = tuple(model.config.base_model_pp_plan or ())
    return names[names.index(LAYERS) + 1 :]


def is_chain(model: PreTrainedModel) -> bool:
    """Whether the model is its embedding, its layers one after the other, and what follows them, by transformers' plan and as
    `cut_stages` measures it; also a stage of one.
    """
    base: Any = model.base_model
    names = list(getattr(model.config, "base_model_pp_plan", None) or {})
    if LAYERS not in names or any(not hasattr(base, name) for name in names):
        return False
    if any(isinstance(module, Elsewhere) for module in base.modules()):
        return True
    try:
        _check_chain(model, [name for name in names if name != LAYERS], 1)
    except ConfigError:
        return False
    return True


def _check_chain(model: PreTrainedModel, ends: Sequence[str], size: int) -> None:
    """Raises ConfigError unless the model is its embedding, its layers one after the other, and what follows them.

    Without these modules it must return the hidden states that it is given, bit by bit; and no layer may receive a container
    in which layers leave something for later ones.
    """
    base: Any = model.base_model
    modules, layers = {name: getattr(base, name) for name in ends}, list(base.layers)
    seen: list[str] = []
    weight = _embedding(model)
    device = "cpu" if weight.is_meta else weight.device  # that of the buffers, which an empty model has too
    hidden = torch.linspace(-1, 1, PROBE_TOKENS * int(model.config.get_text_config().hidden_size), device=device)
    hidden = hidden.view(1, PROBE_TOKENS, -1).to(weight.dtype)
    try:
        for name, module in modules.items():
            setattr(base, name, Elsewhere(module))
        for index, layer in enumerate(layers):
            base.layers[index] = _Recording(layer, seen)
        with torch.no_grad():
            same = torch.equal(base(inputs_embeds=hidden, use_cache=False).last_hidden_state, hidden)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as exc:
        raise _no_chain(
            model, size, f"its layers do not pass hidden states alone ({type(exc).__name__}: {exc})"
        ) from exc
    finally:
        for name, module in modules.items():
            setattr(base, name, module)
        for index, layer in enumerate(layers):
            base.layers[index] = layer
    if seen:
        raise _no_chain(model, size, f"its layers share {seen[0]}")
    if not same:
        raise _no_chain(model, size, "it changes hidden states before or after its layers")


def _no_chain(model: PreTrainedModel, size: int, why: str) -> ConfigError:
    return ConfigError(
        f"pp_size is {size}, but model type {model.config.model_type} is no chain of layers: {why}; expected pp_size 1"
    )


class _Recording(Elsewhere):
    """Notes arguments in which a layer could leave something for another one."""

    def __init__(self, replaced: nn.Module, seen: list[str]) -> None:
        super().__init__(replaced)
        self._seen = seen

    def forward(self, hidden: Tensor, *more: Any, **named: Any) -> Tensor:
        values = {**{f"argument {place}": value for place, value in enumerate(more, 1)}, **named}
        self._seen += [name for name, value in values.items() if isinstance(value, dict | list | set)]
        return hidden


def counted_elsewhere(model: PreTrainedModel, stage: Stage | None) -> Tensor | None:
    """The parameter whose gradient another stage has too, and counts in the norm."""
    if stage is None or stage.is_first or not stage.shares_embedding:
        return None
    return _embedding(model)


def _embedding(model: PreTrainedModel) -> Tensor:
    """Its parameter, which sharding has replaced since the cut."""
    embedding: Any = model.get_input_embeddings()
    weight: Tensor = embedding.weight
    return weight


@torch.no_grad()
def add_tied_gradients(model: PreTrainedModel, stage: Stage) -> None:
    """Each copy of a tied matrix has the sum of both gradients afterwards, with the same bits. After the backward of all rows."""
    gradient = _embedding(model).grad if stage.shares_embedding else None
    if gradient is None:
        return
    own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    if not own.numel():  # a shard without rows, on both stages
        return
    pipeline, other = stage.pipeline, torch.empty_like(own)
    last = pipeline.peers.size - 1
    if stage.is_first:
        sent = dist.isend(own, group=pipeline.forwards, group_dst=last)
        dist.recv(other, group=pipeline.backwards, group_src=last)
    else:
        sent = dist.isend(own, group=pipeline.backwards, group_dst=0)
        dist.recv(other, group=pipeline.forwards, group_src=0)
    assert sent is not None
    sent.wait()
    own.add_(other)
