"""Tiny vision-language models with random weights, random images for them, and records that hold images."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    Idefics3Config,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
    SmolVLMConfig,
)
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl

from shared.tokens.image_span import ImageSpan
from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import RecordBuilder
from trainer.modeling.float64_norms import exact_norms

VOCABULARY = 40
IMAGE, VIDEO, START, END, MARK = 39, 38, 37, 36, 35
FAMILIES = ("smolvlm", "idefics3", "qwen2_5_vl", "qwen3_vl")
TILE_FEATURES = 4

TEXT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROPE: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}


def tiny_config(family: str) -> Any:
    """The config of a tiny model."""
    if family in ("smolvlm", "idefics3"):
        kind = SmolVLMConfig if family == "smolvlm" else Idefics3Config
        vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        vision |= {"image_size": 16, "patch_size": 4}
        text = {**TEXT, "model_type": "llama"}
        return kind(text_config=text, vision_config=vision, scale_factor=2, image_token_id=IMAGE)
    ids = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
    }
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4}
    vision |= {"out_hidden_size": 32, "spatial_merge_size": 2, "temporal_patch_size": 2}
    if family == "qwen2_5_vl":
        vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
        return Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": dict(ROPE)}, vision_config=vision, **ids)
    vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    text = {**TEXT, "head_dim": 8, "rope_parameters": {**ROPE, "mrope_interleaved": True}}
    return Qwen3VLConfig(text_config=text, vision_config=vision, **ids)


def tiny_vision_model(family: str, *, dtype: torch.dtype = torch.float64, attention: str = "sdpa") -> PreTrainedModel:
    """Weights so large that tokens are not equally likely, and that an image matters."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(tiny_config(family), attn_implementation=attention).to(dtype)
    assert isinstance(model, PreTrainedModel)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.0 if "norm" in name or parameter.ndim == 1 else 6.0)
    model.config.use_cache = False
    return model.eval()


@contextmanager
def exact_float64(model: PreTrainedModel) -> Iterator[None]:
    """In this context norms and rotary embeddings of Qwen's towers compute in float64; transformers rounds to float32."""

    def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(-2).to(q.dtype), sin.unsqueeze(-2).to(q.dtype)
        q_half, k_half = modeling_qwen2_5_vl.rotate_half(q), modeling_qwen2_5_vl.rotate_half(k)
        return q * cos + q_half * sin, k * cos + k_half * sin

    name = "apply_rotary_pos_emb_vision"
    with (
        patch.object(modeling_qwen2_5_vl, name, rotated),
        patch.object(modeling_qwen3_vl, name, rotated),
        exact_norms(model),
    ):
        yield


@dataclass(frozen=True)
class RandomImage:
    """`size`: tiles, or (height, width) of the grid of features."""

    digest: str
    size: Any

    @property
    def grid(self) -> tuple[int, int, int] | None:
        return None if isinstance(self.size, int) else (1, *self.size)

    @property
    def count(self) -> int:
        return TILE_FEATURES * self.size if isinstance(self.size, int) else self.size[0] * self.size[1]

    def ids(self) -> list[int]:
        """The tokens that stand for it, its marks included."""
        if isinstance(self.size, int):
            return [START, *([MARK, *[IMAGE] * TILE_FEATURES] * self.size), END]
        return [START, *[IMAGE] * self.count, END]

    def inputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """Random pixels, a function of the digest."""
        random = np.random.default_rng(list(self.digest.encode()))
        if isinstance(self.size, int):
            pixels = random.standard_normal((self.size, 3, 16, 16)).astype(np.float32)
            return {"pixel_values": pixels, "pixel_attention_mask": np.ones((self.size, 16, 16), dtype=np.int64)}
        high, wide = 2 * self.size[0], 2 * self.size[1]
        patches = random.standard_normal((high * wide, 3 * 2 * 4 * 4)).astype(np.float32)
        return {"pixel_values": patches, "image_grid_thw": np.array([[1, high, wide]])}


def images_for(family: str) -> tuple[RandomImage, RandomImage, RandomImage]:
    """Three images; the first two have the same tokens."""
    sizes: Sequence[Any] = (2, 2, 1) if family in ("smolvlm", "idefics3") else ((2, 3), (2, 3), (3, 1))
    a, b, c = (RandomImage(digest, size) for digest, size in zip(("aa", "bb", "cc"), sizes, strict=True))
    return a, b, c


def with_images(record: RecordTree, images: Sequence[RandomImage]) -> RecordTree:
    """The record with these images at its placeholders, in its depth-first order."""
    spans, first = [], 0
    for image in images:
        first += int(np.flatnonzero(record.token_ids_N[first:] == IMAGE)[0])
        spans.append(ImageSpan(image.digest, first, image.count, image.grid))
        first = int(np.flatnonzero(record.token_ids_N[first:] == IMAGE)[image.count - 1]) + first + 1
    return replace(record, images=tuple(spans))


def records_with_images(family: str) -> list[RecordTree]:
    """In the prompt; in a later message; two branches and two records with other images at one place; an image twice."""
    a, b, c = images_for(family)
    records = []
    for name, first, later in (("r0", a, b), ("r1", a, a), ("r2", b, c)):
        builder = RecordBuilder(name)
        prompt = builder.context([7, 8, *first.ids(), 9])
        reply = builder.reply([3, 4, 5], prompt, logprobs=[-3.0, -2.5, -3.3], advantage=1.2)
        answer = builder.context([6, *later.ids(), 10], reply)
        builder.reply([4, 4, 11], answer, advantage=-0.6)
        other = builder.context([6, *c.ids(), 10], reply)
        builder.reply([4, 5], other, advantage=0.8)
        records.append(with_images(builder.build(), (first, later, c)))
    text = RecordBuilder("text")
    text.reply([3, 4, 4], text.context([7, 8, 9]), advantage=0.7)
    return [*records, text.build()]


def pixels_of(family: str) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    return {image.digest: image.inputs() for image in images_for(family)}
