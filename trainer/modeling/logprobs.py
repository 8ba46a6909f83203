"""Log-probabilities of given tokens from hidden states, in chunks, without materialising the full logits
(entries × vocabulary).

The gradient is written in closed form, per chunk, from the saved log-normalizers: measured at 2048 tokens and a
vocabulary of 152k this takes 1.2 GiB where full logits take 3.6 GiB and checkpointed chunks 1.9 GiB. A head that is not
trained (LoRA) costs no gradient of its own: a fourth of the products, and a float32 matrix of its size.

On a CPU a chunk is computed for `VOCABULARY_BLOCK` tokens of the vocabulary at a time, which stay in its cache: the running
maximum and sum of a log-sum-exp (Milakov and Gimelshein 2018, arXiv 1805.02867). The backward takes block by block on every
device, and all chunks of a block, so that float32 sums of the head's gradient are a block's.

The backward computes the logits again, unless all of the row's take at most `SAVED_LOGITS_BYTES`: then the forward saves them,
on a CPU. That spares a product of each chunk; beyond the bound it would cost more memory than the time is worth.

Of a truncated distribution (`truncation.py`) log-probs, gradient and entropy are over the tokens that are kept, and which these
are is constant. It costs one sort of each chunk's logits; what is not truncated costs nothing more.

Eight parameters: a kernel takes its tensors one by one, as autograd gives them back.

    suffix _N  token of the row      _E  one requested log-prob      _D  hidden width      _V  vocabulary      _B  block of it
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.modeling.products import add_product, padding, product
from trainer.modeling.truncation import DROPPED, dropped, thresholds

VOCABULARY_BLOCK = 4096
BACKWARD_BLOCK = 16384  # on a GPU: of a head of width 4096 its gradient in float32 is 256 MiB
SAVED_LOGITS_BYTES = 2**26  # 341 log-probs of a vocabulary of 49,152 in float32


class TokenScores(NamedTuple):
    """`outside_E`: the token is not among those that the truncation keeps by these logits, and was added to them. None: not
    asked for; nothing is truncated."""

    logprob_E: Tensor
    entropy_E: Tensor | None
    outside_E: Tensor | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "TokenScores":
        """With all that there is of them changed."""
        entropy_E, outside_E = (None if of is None else change(of) for of in self[1:])
        return TokenScores(change(self.logprob_E), entropy_E, outside_E)


# 8 parameters: six tensors of one computation, and two options
def token_logprobs(
    hidden_ND: Tensor,
    lm_head_weight_VD: Tensor,
    rows_E: Tensor,
    targets_E: Tensor,
    temperature_E: Tensor,
    chunk: int = 512,
    *,
    truncation_E: Tensor | None = None,
    with_entropy: bool = False,
) -> TokenScores:
    """log softmax(W h[rows] / temperature)[targets], and optionally the entropy of that distribution; both with gradient. With
    `truncation_E` [E, 3], as in `truncation.py`, of what it leaves, and the target.

    `rows_E` are the predicting positions, which entries may share. float32, or float64 for float64 inputs. At most
    `chunk` × V logits exist at a time, or those of `SAVED_LOGITS_BYTES`. The gradient reaches `hidden_ND` and
    `lm_head_weight_VD`, even without entries.
    """
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; expected at least 1")
    count, extra = len(rows_E), padding(len(rows_E), _accumulated(hidden_ND), hidden_ND.device)
    if extra:  # the first one again: its copies get no gradient
        rows_E, targets_E, temperature_E = (_longer(of, extra) for of in (rows_E, targets_E, temperature_E))
        truncation_E = None if truncation_E is None else _longer(truncation_E, extra)
    hidden_ED = hidden_ND.index_select(0, rows_E)
    logprob_E, entropy_E, outside_E = (
        of_E[:count]
        for of_E in _TokenLogprobs.apply(  # type: ignore[no-untyped-call]  # untyped in torch's stubs
            hidden_ED, lm_head_weight_VD, targets_E, temperature_E, truncation_E, chunk, with_entropy
        )
    )
    return TokenScores(logprob_E, entropy_E if with_entropy else None, None if truncation_E is None else outside_E)


def _accumulated(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _longer(of_E: Tensor, extra: int) -> Tensor:
    return torch.cat([of_E, of_E[:1].expand(extra, *of_E.shape[1:])])


def logits_logprobs(
    logits_EV: Tensor,
    targets_E: Tensor,
    temperature_E: Tensor,
    *,
    truncation_E: Tensor | None = None,
    with_entropy: bool = False,
) -> TokenScores:
    """Like `token_logprobs`, from the model's own logits, all at once."""
    dtype = torch.float64 if logits_EV.dtype == torch.float64 else torch.float32
    scaled_EV, outside_E = logits_EV.to(dtype) / temperature_E.to(dtype)[:, None], None
    if truncation_E is not None:
        dropped_EV, outside_E = dropped(scaled_EV, targets_E, thresholds(scaled_EV, truncation_E))
        scaled_EV = scaled_EV.masked_fill(dropped_EV, DROPPED)
    log_p_EV = torch.log_softmax(scaled_EV, dim=-1)
    logprob_E = log_p_EV.gather(-1, targets_E[:, None]).squeeze(-1)
    return TokenScores(logprob_E, -(log_p_EV.exp() * log_p_EV).sum(-1) if with_entropy else None, outside_E)


class _TokenLogprobs(torch.autograd.Function):
    # 8 parameters: torch passes a function's tensors and options one by one
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ED: Tensor,
        weight_VD: Tensor,
        targets_E: Tensor,
        temperature_E: Tensor,
        truncation_E: Tensor | None,
        chunk: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = _accumulated(hidden_ED)
        normalizer_E = torch.empty(len(hidden_ED), dtype=dtype, device=hidden_ED.device)
        logprob_E, entropy_E = (
            torch.empty_like(normalizer_E),
            torch.empty_like(normalizer_E if with_entropy else normalizer_E[:0]),
        )
        threshold_E = torch.empty_like(normalizer_E if truncation_E is not None else normalizer_E[:0])
        outside_E = torch.empty_like(threshold_E, dtype=torch.bool)
        saved_EV = _saved_logits(hidden_ED, weight_VD, dtype) if any(ctx.needs_input_grad) else None
        for part in _chunks(len(hidden_ED), chunk):
            sums = _Sums(normalizer_E[part], with_entropy=with_entropy)
            for block in _blocks(weight_VD, truncated=truncation_E is not None):
                logits = _scaled_logits(hidden_ED[part], weight_VD[block], temperature_E[part], dtype)
                if saved_EV is not None:
                    saved_EV[part, block] = logits
                if truncation_E is not None:
                    threshold_E[part] = thresholds(logits, truncation_E[part])
                    tail, outside_E[part] = dropped(logits, targets_E[part], threshold_E[part])
                    logits.masked_fill_(tail, DROPPED)
                sums.add(logits, *_in_block(targets_E[part], block))
            normalizer_E[part] = sums.normalizer_E
            logprob_E[part] = sums.target_E - sums.normalizer_E
            if with_entropy:
                entropy_E[part] = sums.entropy_E
        ctx.save_for_backward(
            hidden_ED, weight_VD, targets_E, temperature_E, normalizer_E, entropy_E, threshold_E, saved_EV
        )
        ctx.mark_non_differentiable(outside_E)
        ctx.chunk = chunk
        ctx.set_materialize_grads(False)  # for an entropy that no loss uses costs nothing here
        return logprob_E, entropy_E, outside_E

    @staticmethod
    def backward(
        ctx: Any, gradient_E: Tensor | None, entropy_gradient_E: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        """With z = logits / temperature: d logprob / dz = onehot − p, dH / dz = −p (log p + H).

        Sums over chunks in the accumulation type, of a block of the vocabulary at a time, rounded once. No gradient of a head
        that is not trained.
        """
        hidden_ED, weight_VD, targets_E, temperature_E, normalizer_E, entropy_E, threshold_E, saved_EV = (
            ctx.saved_tensors
        )
        dtype = normalizer_E.dtype
        if gradient_E is None:
            gradient_E = torch.zeros_like(normalizer_E)
        hidden_grad_ED = torch.zeros(hidden_ED.shape, dtype=dtype, device=hidden_ED.device)
        weight_grad_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        for block in _blocks(weight_VD, truncated=len(threshold_E) > 0, backward=True):
            weight_BD = weight_VD[block]
            weight_grad_BD = None
            if weight_grad_VD is not None:  # in place, unless its type is another
                weight_grad_BD = weight_grad_VD[block].to(dtype).zero_()
            for part in _chunks(len(hidden_ED), ctx.chunk):
                temperature = temperature_E[part].to(dtype)[:, None]
                scale = gradient_E[part, None] / temperature
                if saved_EV is None:
                    logits = _scaled_logits(hidden_ED[part], weight_BD, temperature_E[part], dtype)
                else:
                    logits = saved_EV[part, block]
                if len(threshold_E):
                    logits = logits.masked_fill(dropped(logits, targets_E[part], threshold_E[part])[0], DROPPED)
                log_p = torch.sub(logits, normalizer_E[part, None], out=logits if saved_EV is None else None)
                if entropy_gradient_E is None:
                    logit_grad = log_p.exp_().mul_(-scale)
                else:
                    entropy_scale = entropy_gradient_E[part, None] / temperature
                    logit_grad = log_p.exp() * (-scale - entropy_scale * (log_p + entropy_E[part, None]))
                place, here = _in_block(targets_E[part], block)
                logit_grad.scatter_add_(1, place, scale * here[:, None])
                rounded = logit_grad.to(weight_VD.dtype)
                _add_product(hidden_grad_ED[part], rounded, weight_BD)
                if weight_grad_BD is not None:
                    _add_product(weight_grad_BD, rounded.T, hidden_ED[part])
            if weight_grad_VD is not None and weight_grad_BD is not None and weight_grad_VD.dtype != dtype:
                weight_grad_VD[block] = weight_grad_BD
        return hidden_grad_ED.to(hidden_ED.dtype), weight_grad_VD, None, None, None, None, None


class _Sums:
    """Of a chunk, over the blocks of the vocabulary that were added so far. Powers are relative to the largest logit."""

    def __init__(self, like_E: Tensor, *, with_entropy: bool) -> None:
        self._largest_E = torch.full_like(
            like_E, torch.finfo(like_E.dtype).min
        )  # -inf would be NaN where a block's logits are
        self._powers_E, self._weighted_E, self.target_E = (torch.zeros_like(like_E) for _ in range(3))
        self._with_entropy = with_entropy

    def add(self, logits_EV: Tensor, place_E1: Tensor, here_E: Tensor) -> None:
        """`place_E1`, `here_E`: as `_in_block` returns them."""
        self.target_E = torch.where(here_E, logits_EV.gather(-1, place_E1).squeeze(-1), self.target_E)
        before_E, self._largest_E = self._largest_E, torch.maximum(self._largest_E, logits_EV.amax(-1))
        powers_EV = torch.exp(logits_EV - self._largest_E[:, None])
        less_E = torch.exp(before_E - self._largest_E)
        self._powers_E = self._powers_E * less_E + powers_EV.sum(-1)
        if self._with_entropy:
            self._weighted_E = self._weighted_E * less_E + (powers_EV * logits_EV).sum(-1)

    @property
    def normalizer_E(self) -> Tensor:  # the suffix is a shape
        return self._largest_E + self._powers_E.log()

    @property
    def entropy_E(self) -> Tensor:  # as above
        """H = lse − Σ p z."""
        return self.normalizer_E - self._weighted_E / self._powers_E


def _saved_logits(hidden_ED: Tensor, weight_VD: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Memory for all logits, where there is enough for them."""
    shape = (len(hidden_ED), len(weight_VD))
    if weight_VD.device.type != "cpu" or shape[0] * shape[1] * dtype.itemsize > SAVED_LOGITS_BYTES:
        return None
    return torch.empty(shape, dtype=dtype, device=weight_VD.device)


def _chunks(count: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, count, chunk)]


def _blocks(weight_VD: Tensor, *, truncated: bool, backward: bool = False) -> list[slice]:
    """Parts of the vocabulary. All of it at once where a truncation must see it, and in the forward on a GPU, which is fastest
    so.
    """
    block = VOCABULARY_BLOCK
    if weight_VD.device.type != "cpu":
        block = BACKWARD_BLOCK if backward else len(weight_VD)
    return _chunks(len(weight_VD), len(weight_VD) if truncated else block)


def _in_block(targets_E: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """The targets' places in the block, [E, 1], 0 for those outside of it; and which are in it."""
    here = (targets_E >= block.start) & (targets_E < block.stop)
    return torch.where(here, targets_E - block.start, 0)[:, None], here


def _scaled_logits(hidden: Tensor, weight_VD: Tensor, temperature: Tensor, dtype: torch.dtype) -> Tensor:
    return _product(hidden, weight_VD.T, dtype).div_(temperature.to(dtype)[:, None])


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b in `dtype`: bfloat16 logits would be rounded to about 0.1 nat at a magnitude of 20."""
    if a.dtype != dtype and a.is_cuda:
        return torch.mm(a, b, out_dtype=dtype)
    return product(a.to(dtype), b.to(dtype))


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == total.dtype:
        add_product(total, a, b)
    else:
        total.add_(_product(a, b, total.dtype))
