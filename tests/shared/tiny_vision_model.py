"""A Qwen2.5-VL of random weights with the bundled model's tokenizer: everything that an engine and transformers load.

`tests.shared.vision_models` makes smaller ones of four families. Engines on a CPU do not serve those: vLLM has no kernel for
heads of width 16, and SGLang 0.5.23 fails on several images with patches of 8 pixels.
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from scripts.make_example_model import build_tokenizer

IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH = 28  # pixels of a feature's side: two patches of 14
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 4 * PATCH**2, "longest_edge": 256 * PATCH**2},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_vision_model(folder: Path, *, seed: int = 0) -> Path:
    """Writes it into `folder`, which exists; returns the folder. The model does not sample placeholders: those end an episode."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
    tokenizer.chat_template = TEMPLATE
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": -(-len(tokenizer) // 64) * 64,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 10000.0},
            "eos_token_id": tokenizer.eos_token_id,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 128,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    _forbid(model, [image, video])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGE_PROCESSOR), encoding="utf-8")
    return folder


def _forbid(model: Qwen2_5_VLForConditionalGeneration, tokens: list[int]) -> None:
    """The first number of each hidden state is 1 before the last norm, whatever is read; only `tokens` weigh it."""
    with torch.no_grad():
        embedding: Any = model.get_input_embeddings().weight
        embedding[:, 0] = 1.0  # also of the head, as all its rows have it: no difference
        embedding[tokens, 0] = -1e4
        merger: Any = model.model.visual.merger.mlp[-1]
        merger.weight[0], merger.bias[0] = 0.0, 1.0
        for layer in model.model.language_model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
