"""Finds the way of computing a model that agrees with its own forward: measured before the first step, on the sharded model.

    probe ──▶ the model's own forward, sequence by sequence, with its own attention and logits   ─┐
      └─────▶ a way: trees or sequences, an attention, a head; the first that agrees is taken    ─┴─▶ log-probs and a gradient

Agreement means up to rounding in the type of the computation. So this code needs no knowledge of a model's logits, masks,
positions or states: an unknown model is either computed correctly or refused with the measured difference. Effects beyond the
probe's length cannot be measured: such settings are read from the config (`ways.tree_obstacle`).

Gradients are compared on a sample of each parameter's elements, taken during the backward: none is held completely.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as foreign_logging

from shared.errors import ConfigError
from trainer.modeling.attention import MaskBuilder, no_mask
from trainer.modeling.context_parallel import of_slices, over_slices
from trainer.modeling.forward import Forwarded, TreeLM, row_logprobs
from trainer.modeling.forward_ways import OWN, Head, Way, attentions
from trainer.modeling.pipeline import RowPipeline
from trainer.modeling.pipeline_parallel import Stage
from trainer.modeling.probe import Probe, make_probe
from trainer.modeling.sampled_gradients import sampled_gradients
from trainer.modeling.vision import attention_of_parts
from trainer.process.peers import Peers
from trainer.process.private_apis import attention_name
from trainer.trees.packing import Row

log = logging.getLogger(__name__)

# of probes: a rounding-dependent choice of expert affects one of them, a wrong mask both
SEEDS = (0, 1)
FOREIGN_ERRORS = (  # raised by transformers and torch if a forward or backward does not fit the model
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`logprob` in nats; `gradient` relative to the parameter's, or to `small` times the largest parameter's."""

    logprob: float
    gradient: float
    small: float


TOLERANCES = {  # rounding is a hundredth of these: tests/trainer/model_table.py
    torch.float64: Tolerance(1e-4, 3e-4, 1e-2),  # norms and routers compute in float32 even here
    torch.float32: Tolerance(1e-4, 3e-4, 1e-2),
    torch.bfloat16: Tolerance(0.02, 0.03, 0.1),
}
NOISE = 3.0  # in bfloat16: multiple of the same attention's and head's difference on single sequences
MOST = Tolerance(0.5, 0.3, 0.1)  # upper bound of that multiple
ON_ACCELERATOR = Tolerance(1e-3, 5e-3, 1e-2)  # float32: accelerator kernels multiply with fewer bits


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of log-probs (nats) and the largest relative difference of a parameter's gradient."""

    logprob: float
    gradient: float

    def within(self, tolerance: Tolerance) -> bool:
        """False for nan."""
        return self.logprob <= tolerance.logprob and self.gradient <= tolerance.gradient

    def __str__(self) -> str:
        return f"log-probs {self.logprob:.1e} nats off, gradient {100 * self.gradient:.2g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """`precision`: the compute type, if not the parameters'. `compiled`: layers are compiled, but not while measuring: each would
    be compiled for the probe and again for the data.
    """

    prefix_trees: bool = True
    precision: torch.dtype | None = None
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The chosen way, its difference to the model's own forward, and why earlier ways were rejected."""

    way: Way
    difference: Difference
    rejected: tuple[str, ...]


@dataclass(slots=True)
class _Result:
    logprob_E: Tensor
    gradients: dict[str, Tensor] = field(default_factory=dict)


def choose_forward_mode(
    lm: TreeLM,
    attention: str,
    device: torch.device,
    *,
    obstacle: str | None = None,
    conditions: Conditions = Conditions(),
    peers: Peers | None = None,
) -> ProbeResult:
    """Set `lm` to the first way that agrees with the model's own forward. Every rank must call it.

    `attention`: an attn_implementation, or auto. `obstacle`: why trees are not tried. A model without trained parameters is
    compared by log-probs only.
    Raises ConfigError, with the measured differences, if no way agrees.
    """
    dtype = conditions.precision or next(lm.causal_lm.parameters()).dtype
    measuring = _Measuring(lm, device, _tolerance(dtype, device), peers)
    rejected: list[str] = [] if obstacle is None else [f"prefix trees: {obstacle}"]
    as_it_is = torch.compiler.set_stance("force_eager") if conditions.compiled else nullcontext()
    tried = attentions(attention, device, dropout=lm.causal_lm.training)
    with _quiet(), _evaluated(lm.causal_lm), as_it_is:
        measuring.measure_own()
        heads = measuring.heads()
        for way in _ways(lm, tried, heads, trees=conditions.prefix_trees and obstacle is None):
            difference = measuring.difference(way)
            if isinstance(difference, Difference) and difference.within(measuring.tolerance_of(way)):
                measuring.use(way)
                return ProbeResult(way, difference, tuple(rejected))
            rejected.append(f"{way}: {difference}")
    raise ConfigError(
        f"model type {lm.causal_lm.config.model_type}: no way to compute it agrees with its own forward within "
        f"{measuring.tolerance.logprob:g} nats and {100 * measuring.tolerance.gradient:g} % of a gradient in {dtype}. Tried: "
        f"{'; '.join(rejected)}. Expected a model that one of them fits: try attn_implementation auto, another dtype, "
        "tp_size and cp_size 1"
    )


def _tolerance(dtype: torch.dtype, device: torch.device) -> Tolerance:
    return ON_ACCELERATOR if dtype == torch.float32 and device.type != "cpu" else TOLERANCES[dtype]


def _ways(lm: TreeLM, tried: Sequence[str], heads: Sequence[Head], *, trees: bool) -> Iterator[Way]:
    names = [of_slices(name, lm.context) if lm.context is not None else name for name in tried]
    if trees:
        yield from (Way(name, trees=True, head=head) for name in names for head in heads)
    yield from (Way(name, trees=False, head=head) for name in names for head in heads)


class _Measuring:
    def __init__(self, lm: TreeLM, device: torch.device, tolerance: Tolerance, peers: Peers | None) -> None:
        self._lm, self._device, self._peers = lm, device, peers
        self.tolerance = tolerance
        self._exact = tolerance is not TOLERANCES[torch.bfloat16]
        self._probes = [make_probe(lm.causal_lm, seed) for seed in SEEDS]
        self._own: list[tuple[_Result, _Result]] = []  # by probe: of near sequences, of all sequences

    def measure_own(self) -> None:
        """Run the model's own forward. Raises ConfigError if it fails, since then nothing can be compared."""
        try:
            for probe in self._probes:
                near = self._run(OWN, probe.near, probe)
                far = self._run(Way(OWN.attention, trees=True, head=OWN.head), probe.far, probe, plain=True)
                self._own.append((near, _sum(near, far)))
        except FOREIGN_ERRORS as exc:
            raise ConfigError(
                f"model type {self._lm.causal_lm.config.model_type}: its own forward of a sequence fails: {_error_line(exc)}; "
                "expected a causal language model whose only input is token ids"
            ) from exc
        if not all(bool(result.logprob_E.isfinite().all()) for result, _ in self._own):
            raise ConfigError(
                f"model type {self._lm.causal_lm.config.model_type}: its own forward gives log-probs that are not finite"
            )

    def heads(self) -> list[Head]:
        """Heads that reproduce the model's log-probs of single sequences, cheapest first."""
        for head in (Head.CHUNKED, Head.KEPT):
            difference = self.difference(Way(OWN.attention, trees=False, head=head))
            if isinstance(difference, Difference) and difference.within(self.tolerance if self._exact else MOST):
                return [head]
        return [Head.WHOLE]

    def tolerance_of(self, way: Way) -> Tolerance:
        """The tolerance for a way; in bfloat16 from the difference of its attention and head on single sequences."""
        if self._exact:
            return self.tolerance
        noise = self.difference(Way(way.attention, trees=False, head=way.head)) if way.trees else None
        if not isinstance(noise, Difference):
            return MOST if noise is None else self.tolerance
        return Tolerance(
            min(max(self.tolerance.logprob, NOISE * noise.logprob), MOST.logprob),
            min(max(self.tolerance.gradient, NOISE * noise.gradient), MOST.gradient),
            self.tolerance.small,
        )

    def difference(self, way: Way) -> Difference | str:
        """The difference on the better of the probes, or the error."""
        best: Difference | None = None
        for probe, (near, whole) in zip(self._probes, self._own, strict=True):
            try:
                rows = (*probe.near, *probe.far) if over_slices(way.attention) else probe.near
                result = self._run(way, (probe.tree,) if way.trees else rows, probe)
            except FOREIGN_ERRORS as exc:
                return _error_line(exc)
            difference = self._between(result, whole if way.trees or over_slices(way.attention) else near)
            if best is None or difference.gradient < best.gradient or math.isnan(best.gradient):
                best = difference
            if best.within(self.tolerance):
                break
        assert best is not None
        return best

    def use(self, way: Way) -> None:
        """Switch to a way. Raises ValueError for an attention that the model does not support."""
        set_attention(self._lm.causal_lm, way.attention)
        self._lm.way = way

    def _run(self, way: Way, rows: Sequence[Row], probe: Probe, *, plain: bool = False) -> _Result:
        """Log-probs and gradient of these rows. `plain`: without a mask, for single sequences."""
        self.use(way)
        mask = no_mask if plain else self._lm.mask(self._device)
        start = 0 if not plain else probe.num_near
        coefficients_E = probe.coefficients_E.to(self._device)
        parts = 1 if self._lm.sharing is None else self._lm.sharing.size  # of a gradient, which FSDP averages
        result = _Result(torch.zeros(0, dtype=torch.float64))
        if self._lm.stage is not None:
            return self._run_in_stages(rows, mask, coefficients_E[start:] * parts)
        with sampled_gradients(self._lm, result.gradients) as trains:
            for row in rows:
                part = row.to(self._device)
                with torch.set_grad_enabled(trains):
                    logprob_E, _ = row_logprobs(self._lm, part, attn=mask)
                    loss = (coefficients_E[start : start + len(logprob_E)] * logprob_E).sum() * parts
                if trains:
                    loss.backward()
                start += len(logprob_E)
                result.logprob_E = torch.cat([result.logprob_E, logprob_E.detach().double().cpu()])
        return result

    def _run_in_stages(self, rows: Sequence[Row], mask: MaskBuilder, coefficients_E: Tensor) -> _Result:
        """The same by a pipeline, after each stage has computed the rows alone: an error there is one on every stage."""
        assert self._lm.stage is not None, "of a model in stages"
        peers = self._lm.stage.pipeline.peers
        pipeline = RowPipeline(self._lm, self._device, attn=mask)
        starts = np.cumsum([0, *(row.num_entries for row in rows)]).tolist()

        def loss(index: int, forwarded: Forwarded) -> Tensor:
            return (coefficients_E[starts[index] : starts[index + 1]] * forwarded.logprob_E).sum()

        with sampled_gradients(self._lm, {}):
            pipeline.rehearse(rows, FOREIGN_ERRORS)
        result = _Result(torch.zeros(0, dtype=torch.float64))
        with sampled_gradients(self._lm, result.gradients) as trains:
            trained = any(peers.gather_objects(trains))  # not of a reference model
            scores = pipeline.train(rows, loss) if trained else pipeline.scores(rows)
        result.logprob_E = torch.cat([result.logprob_E, *(of_row.logprob_E.double().cpu() for of_row in scores)])
        return result

    def _between(self, result: _Result, own: _Result) -> Difference:
        """The difference over all ranks, each of which has a part of every gradient, or of every one of its stage."""
        logprob = float((result.logprob_E - own.logprob_E).abs().max())
        sums: list[float] = []
        # the same parameters on every rank, though a rank may have no part of a small one
        for name, parameter in self._lm.named_parameters():
            nothing = torch.zeros(1, dtype=torch.float64)
            expected, given = own.gradients.get(name), result.gradients.get(name)
            if parameter.requires_grad:
                wrong_here = (nothing if given is None else given) - (nothing if expected is None else expected)
                sums += [float(wrong_here.square().sum()), 0.0 if expected is None else float(expected.square().sum())]
        stage = self._lm.stage
        if self._peers is not None:
            sums = (self._peers if stage is None else stage.pipeline.stage).sum_scalars(sums)
            logprob = float(torch.tensor(self._peers.gather_objects(logprob)).max())  # so that all ranks decide alike
        wrong, norms = ([math.sqrt(value) for value in sums[place::2]] for place in (0, 1))
        floor = self.tolerance.small * _largest(norms, stage)
        relative = [error / max(norm, floor) if error else 0.0 for error, norm in zip(wrong, norms, strict=True)]
        return Difference(logprob, _largest(relative, stage))


def _largest(values: Sequence[float], stage: Stage | None) -> float:
    """Of all stages; nan if any is."""
    every = (
        values if stage is None else [v for of_stage in stage.pipeline.peers.gather_objects(values) for v in of_stage]
    )
    return math.nan if any(map(math.isnan, every)) else max(every, default=0.0)


def _sum(near: _Result, far: _Result) -> _Result:
    gradients = dict(near.gradients)
    for name, gradient in far.gradients.items():
        gradients[name] = gradients[name] + gradient if name in gradients else gradient
    return _Result(torch.cat([near.logprob_E, far.logprob_E]), gradients)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Switch the attention. Raises ValueError for a model that does not support it."""
    if attention_name(model) != name:
        model.set_attn_implementation(attention_of_parts(model, name))
    if attention_name(model) != name:
        raise ValueError(f"{type(model).__name__} supports only attention {attention_name(model)}")


@contextmanager
def _evaluated(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode without dropout; recomputed layers stay recomputed."""
    dropout = model.training
    if dropout:
        model.eval()
    try:
        yield
    finally:
        if dropout:
            model.train()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' advice during trials."""
    before = foreign_logging.get_verbosity()
    foreign_logging.set_verbosity_error()
    try:
        yield
    finally:
        foreign_logging.set_verbosity(before)


def _error_line(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text[:200]}"
