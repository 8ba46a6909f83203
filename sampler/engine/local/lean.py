"""A compact forward for models of the Llama, Qwen2 and Qwen3 shape: transformers' weights without its module calls.

The stock forward costs about 3 ms of Python per step on a tiny model; this one about 0.3 ms. Its fused matrices share memory
with the model's parameters, so an update only loads new weights into the model. It is checked against the stock forward when
the model is loaded (`runner.load_runner`); on any difference it is not used.

Shapes: N tokens, D hidden, H query heads, K kv heads, E head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import PreTrainedModel

from sampler.engine.local.attention import Plan, attend
from sampler.engine.local.products import Products


class NotLeanError(Exception):
    """The model's shape is not supported by this forward; names the difference."""


@dataclass(slots=True)
class Layer:
    norm1: Tensor
    qkv: Tensor  # [(H + 2K) * E, D]
    qkv_bias: Tensor | None
    qk_norm: tuple[Tensor, Tensor] | None  # live views of the two [E] weights
    out: nn.Linear
    norm2: Tensor
    gate_up: Tensor  # [2 * intermediate, D]
    down: nn.Linear


class LeanForward:
    def __init__(self, model: PreTrainedModel, max_len: int) -> None:
        config = model.config.get_text_config()
        inner = model.get_decoder()
        if not {"hidden_act", "rms_norm_eps"} <= config.to_dict().keys():
            raise NotLeanError("no hidden_act or rms_norm_eps in its config")
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        if config.hidden_act not in ("silu", "swish"):
            raise NotLeanError(f"activation {config.hidden_act}")
        self.embed = _parameter(inner, "embed_tokens.weight")
        self.norm = _parameter(inner, "norm.weight")
        self.head = _parameter(model, "lm_head.weight")
        self.layers = [self._layer(layer) for layer in _submodule(inner, "layers").children()]
        self.scale = float(getattr(_submodule(inner, "layers.0.self_attn"), "scaling", self.head_dim**-0.5))
        self._rotary = _rotary_table(inner, self.head_dim, max_len)
        self._axes = _rotary_axes(inner, self.head_dim)
        width = self.embed.shape[1]
        self._product = Products([layer.gate_up for layer in self.layers])
        self._eps_by_size = {size: torch.full((1, 1, 1), self.eps) for size in (width, self.head_dim)}

    def _layer(self, layer: nn.Module) -> Layer:
        expected = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
        actual = {name for name, _ in layer.named_children()}
        if actual != expected:
            raise NotLeanError(f"a layer with {sorted(actual)}")
        attn, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
        projections = [_linear(attn, name) for name in ("q_proj", "k_proj", "v_proj")]
        gates = [_linear(mlp, name) for name in ("gate_proj", "up_proj")]
        if any(gate.bias is not None for gate in gates):
            raise NotLeanError("a bias in the MLP's gate")
        norms = [name for name, _ in attn.named_children() if name.endswith("_norm")]
        qk_norm = None
        if norms:
            qk_norm = (_parameter(attn, "q_norm.weight"), _parameter(attn, "k_norm.weight"))
            if qk_norm[0].shape != (self.head_dim,):
                raise NotLeanError(f"q_norm of shape {tuple(qk_norm[0].shape)}")
        biases = [p.bias for p in projections]
        return Layer(
            norm1=_parameter(layer, "input_layernorm.weight"),
            qkv=_fuse([p.weight for p in projections]),
            qkv_bias=None if biases[0] is None else _fuse(biases),
            qk_norm=qk_norm,
            out=_linear(attn, "o_proj"),
            norm2=_parameter(layer, "post_attention_layernorm.weight"),
            gate_up=_fuse([g.weight for g in gates]),
            down=_linear(mlp, "down_proj"),
        )

    def logits(self, plan: Plan) -> Tensor:
        """[N or len(plan.logit_rows), vocabulary], float32."""
        rotary = self._turns(plan.position_N if plan.rotary is None else plan.rotary)
        cos, sin = rotary[:, 0:1], rotary[:, 1:2]
        x = self.embed.index_select(0, plan.token_N)
        if plan.shown is not None:
            x[plan.shown.row_P] = plan.shown.levels_PD[0]
        rotated, half = self.heads + self.kv_heads, self.head_dim // 2
        for index, layer in enumerate(self.layers):
            qkv = (
                self._apply(layer.qkv, self._rms(x, layer.norm1), layer.qkv_bias)
                .contiguous()
                .view(len(x), -1, self.head_dim)
            )
            query_key = qkv[:, :rotated]
            if layer.qk_norm is not None:
                query_key = self._norm_heads(query_key, layer.qk_norm)
            turned = query_key.roll(half, -1)  # `sin` carries the sign of the first half
            query_key = torch.addcmul(query_key * cos, turned, sin)
            key_value = torch.cat((query_key[:, self.heads :], qkv[:, rotated:]), 1)
            seen = attend(plan, index, query_key[:, : self.heads], key_value, self.scale)
            x = x + self._apply(layer.out.weight, seen, layer.out.bias)
            gate, up = self._product(layer.gate_up, self._rms(x, layer.norm2)).chunk(2)
            hidden = silu(gate).mul_(up).t().contiguous()
            x = x + self._apply(layer.down.weight, hidden, layer.down.bias)
            if plan.shown is not None and index + 1 < len(plan.shown.levels_PD):  # deepstack (Qwen3-VL)
                x[plan.shown.row_P] += plan.shown.levels_PD[index + 1]
        if plan.logit_rows is not None:
            x = x.index_select(0, plan.logit_rows)
        return self._apply(self.head, self._rms(x, self.norm)).contiguous()

    def _turns(self, positions: Tensor) -> Tensor:
        """[N] or [3, N] -> cosine and signed sine of each dimension, [N, 2, E]."""
        if positions.dim() == 1:
            return self._rotary.index_select(0, positions)
        of_dimension = positions[self._axes].t()[:, None].expand(-1, 2, -1)
        return self._rotary.gather(0, of_dimension)

    def _apply(self, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [N, in], contiguous -> [N, out], a transposed view."""
        product = self._product(weight, x).t()
        return product if bias is None else product.add_(bias)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        size = x.shape[-1]
        mean: Tensor = torch.baddbmm(self._eps_by_size[size], x.unsqueeze(1), x.unsqueeze(2), alpha=1 / size)
        return x.mul(mean.rsqrt_().squeeze(-1)).mul_(weight)

    def _norm_heads(self, x: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        mean: Tensor = torch.linalg.vecdot(x, x).mul_(1 / self.head_dim).add_(self.eps)
        out: Tensor = x * mean.rsqrt_().unsqueeze_(-1)
        out[:, : self.heads].mul_(weights[0])
        out[:, self.heads :].mul_(weights[1])
        return out


def _fuse(parts: Sequence[Tensor]) -> Tensor:
    """Fuse several matrices into one; the parts become views of it, so both stay equal."""
    fused = torch.cat([part.data for part in parts])
    start = 0
    for part in parts:
        part.data = fused[start : start + len(part)]
        start += len(part)
    return fused


def _rotary_table(inner: nn.Module, head_dim: int, max_len: int) -> Tensor:
    """[max_len, 2 (cos, signed sin), E] from the model's own rotary module, with its scaling."""
    cos, sin = _submodule(inner, "rotary_emb")(torch.zeros(1), torch.arange(max_len)[None])
    if cos.shape[-1] != head_dim:
        raise NotLeanError(f"rotary embedding of {cos.shape[-1]} of {head_dim} dimensions")
    sign = torch.ones(head_dim)
    sign[: head_dim // 2] = -1
    return torch.stack((cos[0], sin[0] * sign), 1).float().contiguous()


def _rotary_axes(inner: nn.Module, head_dim: int) -> Tensor:
    """[E] int64: by which of the three parts of an M-RoPE position a dimension turns; 0 where positions have one part."""
    axes = torch.zeros(head_dim, dtype=torch.int64)
    rotary = _submodule(inner, "rotary_emb")
    if not hasattr(rotary, "mrope_section"):
        return axes
    for axis in (1, 2):
        alone = torch.zeros(3, 1, 1, dtype=torch.int64)
        alone[axis] = 1
        _, sin = rotary(torch.zeros(1), alone)
        axes[sin[0, 0] != 0] = axis
    return axes


def _parameter(module: nn.Module, name: str) -> Tensor:
    try:
        return module.get_parameter(name).detach()
    except AttributeError as error:
        raise NotLeanError(f"no {name}") from error


def _linear(module: nn.Module, name: str) -> nn.Linear:
    submodule = _submodule(module, name)
    if not isinstance(submodule, nn.Linear):
        raise NotLeanError(f"{name} of type {type(submodule).__name__}")
    return submodule


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        raise NotLeanError(f"no {name}") from error
