"""Tiny random vision-language models, one of each family, as a model's directory with real tokenizer files.

    write_vision_model(tmp_path / "model", "qwen3_vl")     0.5 to 0.9 MB

The tokenizer and the chat template are those of assets/example/model, with the special tokens of the family and contents of
text and image blocks. No test downloads a model: the family's config class makes the weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

EXAMPLE_MODEL = Path(__file__).resolve().parents[2] / "assets" / "example" / "model"
VISION_FAMILIES = ("idefics3", "smolvlm", "qwen2_5_vl", "qwen3_vl")
TILE_TOKENS = (
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
PAD_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "dtype": "float32",
    "bos_token_id": None,
}


def write_vision_model(
    folder: Path, family: str, *, image_processor: Mapping[str, Any] | None = None, seed: int = 0, weights: bool = True
) -> Path:
    """Write a random model of `family` (one of VISION_FAMILIES) and return `folder`.

    `image_processor`: settings of the image processor beyond, or other than, those of the family below; None as a value
    removes one. `weights=False` leaves model.safetensors out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tiles = family in ("idefics3", "smolvlm")
    tokenizer = _tokenizer(TILE_TOKENS if tiles else PAD_TOKENS, "<image>" if tiles else PAD_IMAGE)
    tokenizer.save_pretrained(folder)
    config, model_class = _tile_model(tokenizer, family) if tiles else _grid_model(tokenizer, family)
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    if weights:
        torch.manual_seed(seed)
        model_class(config).float().save_pretrained(folder)
    settings = {**(_TILE_SETTINGS if tiles else _GRID_SETTINGS[family]), **(image_processor or {})}
    settings = {name: value for name, value in settings.items() if value is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    name = {"idefics3": "Idefics3", "smolvlm": "SmolVLM", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[family]
    processor = {"processor_class": f"{name}Processor", **({"image_seq_len": 4} if tiles else {})}
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=2), encoding="utf-8")
    return folder


PAD_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"  # what Qwen's templates write for an image block


def _tokenizer(tokens: tuple[str, ...], image: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EXAMPLE_MODEL)
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    tokenizer.model_max_length = 2048
    tokenizer.chat_template = block_template((EXAMPLE_MODEL / "chat_template.jinja").read_text(), image)
    return tokenizer


def block_template(template: str, image: str) -> str:
    """The example's template, whose contents are texts or lists of blocks; `image` is written for an image block."""
    macro = (
        "{%- macro blocks(content) %}{% if content is string %}{{ content }}{% elif content %}{% for block in content %}"
        "{% if block.type == 'image' %}" + image + "{% elif block.type == 'text' %}{{ block.text }}{% endif %}"
        "{% endfor %}{% endif %}{% endmacro %}\n"
    )
    text = template.replace("message.content if message.content is string else ''", "blocks(message.content)")
    text = text.replace("messages[0].content }}", "blocks(messages[0].content) }}")
    assert text.count("blocks(") == 2, "the example's chat template has another form"
    return macro + text


def _tile_model(tokenizer: PreTrainedTokenizerFast, family: str) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """4 tokens for each tile of 32 x 32 pixels: (32 / 8)^2 patches, merged by 2 x 2."""
    config_class, model_class = {
        "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
        "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
    }[family]
    text = {**TEXT, **_ends(tokenizer), "model_type": "llama", "num_hidden_layers": 2, "head_dim": 16}
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    config = config_class(
        text_config=text, vision_config=vision, scale_factor=2, image_token_id=image_id, **_outer(tokenizer)
    )
    return config, model_class


def _grid_model(tokenizer: PreTrainedTokenizerFast, family: str) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """A token for each 16 x 16 pixels, 4 to 16 an image: patches of 8 x 8, merged by 2 x 2; M-RoPE."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    text = {**TEXT, **_ends(tokenizer), "num_hidden_layers": 3}
    vision: dict[str, Any] = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": TEXT["hidden_size"],
    }
    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    if family == "qwen3_vl":
        config_class, model_class = Qwen3VLConfig, Qwen3VLForConditionalGeneration
        rope = {**rope, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
        text = {**text, "head_dim": 16}
        vision = {**vision, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    else:
        config_class, model_class = Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
        vision = {**vision, "window_size": 32, "fullatt_block_indexes": [1]}
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
        for name, token in (
            ("image", "<|image_pad|>"),
            ("video", "<|video_pad|>"),
            ("vision_start", "<|vision_start|>"),
            ("vision_end", "<|vision_end|>"),
        )
    }
    config = config_class(
        text_config={**text, "rope_parameters": rope}, vision_config=vision, **ids, **_outer(tokenizer)
    )
    return config, model_class


def _ends(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return {**ids, "vocab_size": -(-len(tokenizer) // 8) * 8}


def _outer(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {"tie_word_embeddings": True, "pad_token_id": tokenizer.pad_token_id, "dtype": "float32"}


# The names that the published models of each family have in their preprocessor_config.json.
_TILE_SETTINGS: dict[str, Any] = {
    "image_processor_type": "Idefics3ImageProcessor",
    "processor_class": "Idefics3Processor",
    "do_convert_rgb": True,
    "do_image_splitting": True,
    "do_normalize": True,
    "do_pad": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_image_size": {"longest_edge": 32},
    "resample": 1 if TorchVersion(torch.__version__) >= "2.12" else 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"longest_edge": 128},
}
_OF_EVERY_GRID: dict[str, Any] = {"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2}
_GRID_SETTINGS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        **_OF_EVERY_GRID,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "min_pixels": 4 * 256,
        "max_pixels": 16 * 256,
    },
    "qwen3_vl": {
        **_OF_EVERY_GRID,
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 4 * 256, "longest_edge": 16 * 256},
    },
}
