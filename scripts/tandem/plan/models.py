"""Shapes of models, from their config.json: of a folder, or of one that is known by name, so that a plan needs no download.

The shapes of `KNOWN` are those of Qwen's own config.json files (Qwen3 Technical Report, arXiv 2505.09388, tables 1 and 2),
compared with the flavors of torchtitan (`torchtitan/models/qwen3/__init__.py`). All have heads of 128 and a vocabulary of
151,936.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.files.json_file import read_json_file


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor of a model. `rows`: its first dimension, which FSDP2 cuts; `width`: the product of the others. `cut`: how tp_size
    cuts it (`trainer/modeling/tensor_parallel.py`). `second`: of three dimensions; 0: there are two at most."""

    rows: int
    width: int
    cut: str = "none"  # rows, columns (the width), none
    is_linear: bool = False  # has an adapter with lora_rank, and 4 bits with base_quantization
    second: int = 0

    @property
    def numbers(self) -> int:
        return self.rows * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with Llama's layers. `experts` 0: a dense model; else each layer has so many of `expert_width`."""

    name: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    vocabulary: int
    tied: bool
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    head_norms: bool = True  # of queries and keys: Qwen3
    context: int = 40960

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_width

    @property
    def key(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.key_heads * self.head_width

    def layer_matrices(self) -> list[Matrix]:
        """The tensors of one layer, as transformers has them: the experts' in two of three dimensions."""
        h = self.hidden
        attention = [Matrix(width, h, "rows", is_linear=True) for width in (self.query, self.key, self.key)]
        attention.append(Matrix(h, self.query, "columns", is_linear=True))
        norms = [Matrix(h, 1)] * 2 + ([Matrix(self.head_width, 1)] * 2 if self.head_norms else [])
        if self.experts:
            experts = [
                Matrix(self.experts, 2 * self.expert_width * h, "rows", second=2 * self.expert_width),
                Matrix(self.experts, self.expert_width * h, "rows", second=h),
            ]
            return [*attention, *norms, Matrix(self.experts, h), *experts]
        gated = [Matrix(self.inner, h, "rows", is_linear=True)] * 2
        return [*attention, *norms, *gated, Matrix(h, self.inner, "columns", is_linear=True)]

    def root_matrices(self, *, first: bool = True, last: bool = True) -> list[Matrix]:
        """Embedding, last norm and, where it has its own, the head. `first`, `last`: whether a stage has that end of the model.
        Either end has all of a tied embedding."""
        ends = first + last if not (self.tied and first and last) else 1
        return [*[Matrix(self.vocabulary, self.hidden)] * ends, *[Matrix(self.hidden, 1)] * last]

    @property
    def layer_numbers(self) -> int:
        return sum(matrix.numbers for matrix in self.layer_matrices())

    @property
    def numbers(self) -> int:
        """Parameters."""
        return self.layers * self.layer_numbers + sum(matrix.numbers for matrix in self.root_matrices())

    @property
    def used_numbers(self) -> int:
        """Those that multiply one token: without the embedding, and of the experts those that it chooses."""
        unused = (self.experts - self.experts_per_token) * 3 * self.expert_width * self.hidden
        return self.layers * (self.layer_numbers - unused) + self.vocabulary * self.hidden

    def config(self) -> dict[str, Any]:
        """Its config.json, for transformers."""
        common = {
            "vocab_size": self.vocabulary, "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.key_heads, "head_dim": self.head_width,
            "intermediate_size": self.inner, "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.context,
        }  # fmt: skip
        if not self.experts:
            return {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **common}
        return {
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **common, "num_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token, "moe_intermediate_size": self.expert_width,
        }  # fmt: skip


def _dense(name: str, sizes: tuple[int, int, int, int], *, tied: bool) -> ModelShape:
    """`sizes`: layers, hidden, query heads, inner."""
    layers, hidden, heads, inner = sizes
    return ModelShape(
        name=name, layers=layers, hidden=hidden, heads=heads, key_heads=8, head_width=128, inner=inner,
        vocabulary=151936, tied=tied,
    )  # fmt: skip


def _mixture(name: str, layers: int, hidden: int, heads: int, expert_width: int) -> ModelShape:
    return ModelShape(
        name=name, layers=layers, hidden=hidden, heads=heads, key_heads=4, head_width=128, inner=3 * hidden,
        vocabulary=151936, tied=False, experts=128, experts_per_token=8, expert_width=expert_width,
    )  # fmt: skip


KNOWN = {
    shape.name: shape
    for shape in (
        _dense("Qwen3-0.6B", (28, 1024, 16, 3072), tied=True),
        _dense("Qwen3-1.7B", (28, 2048, 16, 6144), tied=True),
        _dense("Qwen3-4B", (36, 2560, 32, 9728), tied=True),
        _dense("Qwen3-8B", (36, 4096, 32, 12288), tied=False),
        _dense("Qwen3-14B", (40, 5120, 40, 17408), tied=False),
        _dense("Qwen3-32B", (64, 5120, 64, 25600), tied=False),
        _mixture("Qwen3-30B-A3B", 48, 2048, 32, 768),
        _mixture("Qwen3-235B-A22B", 94, 4096, 64, 1536),
    )
}


def shape_of(model: str) -> ModelShape:
    """Of a folder with config.json, or a known name, with or without its owner. Raises ConfigError."""
    known = KNOWN.get(model.removeprefix("Qwen/"))
    if known is not None:
        return known
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(
            f"{model}: no folder with a config.json, and no known name; expected a folder or one of {', '.join(KNOWN)}"
        )
    config = read_json_file(Path(model) / "config.json", "a model's configuration", keys_once=False)
    try:
        return _read(model, config)
    except (KeyError, TypeError) as exc:
        raise ConfigError(f"{model}/config.json does not say {exc}; expected a model with Llama's layers") from exc


def _read(model: str, config: Mapping[str, Any]) -> ModelShape:
    kind, heads = str(config["model_type"]), config["num_attention_heads"]
    experts = int(config.get("num_experts") or 0)
    return ModelShape(
        name=Path(model).name,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        head_width=config.get("head_dim") or config["hidden_size"] // heads,
        inner=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        experts_per_token=config["num_experts_per_tok"] if experts else 0,
        expert_width=config["moe_intermediate_size"] if experts else 0,
        head_norms=kind.startswith("qwen3"),
        context=config.get("max_position_embeddings") or 0,
    )
