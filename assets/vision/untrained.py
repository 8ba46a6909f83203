"""Writes a small vision-language model of random weights, of the architecture of Qwen2.5-VL: 1.1 million parameters.

python -m assets.vision.untrained FOLDER [MEAN]        MEAN: the gray that is 0 to the model, from 0 to 1 (1: white)
python -m assets.vision.untrained FOLDER --wide        layers of the width's own scale: places are learned in 125 steps

Recipes train it first on conversations (warmup.yml), then by reinforcement learning. An image of 112 x 112 pixels is 16 tokens.
The tokenizer is made as the bundled model's: capitals, digits and operators are one token each, and the words around are merged.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from assets.vision.drawing import COLOURS, EDGE
from scripts.make_example_model import build_tokenizer

PATCH, MERGE, WIDTH = 14, 2, 128
PLACEHOLDER, VIDEO, START, END = VISION_TOKENS = (
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)
EMBEDDINGS = (
    0.1  # standard deviation, as of the bundled model; and of the tower: its features are added where embeddings are
)
LAYERS, FEATURES = (
    3.0,
    0.1,
)  # `wide`: factors of the language model's layers (0.02 before), and of what the tower hands over
TOOLS = {
    "see": "picture",
    "calculate": "expression",
    "play": "number",
    "move": "direction",
    "open": "page",
    "click": "x",
}
IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": MERGE,
    "size": {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": EDGE**2},
    "image_std": [0.5, 0.5, 0.5],
}


def main() -> None:
    numbers = [float(word) for word in sys.argv[2:] if word != "--wide"]
    write_untrained(Path(sys.argv[1]), *numbers, wide="--wide" in sys.argv)


def write_untrained(folder: Path, mean: float = 1.0, seed: int = 7, *, wide: bool = False) -> None:
    """`mean`: of the image processor. With the shade of the background, what stands on it is all that a feature has. `wide`: the
    layers are scaled (`widen`)."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(merged_texts())
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION_TOKENS)})
    tokenizer.chat_template = Path(__file__).with_name("chat.jinja").read_text(encoding="utf-8")
    image, video, start, end = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": -(-len(tokenizer) // 64) * 64,
            "hidden_size": WIDTH,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0},
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_heads": 2,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "window_size": EDGE,
            "fullatt_block_indexes": [1],
            "out_hidden_size": WIDTH,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        dtype="float32",
    )
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config).float()
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    torch.nn.init.normal_(embeddings.weight, std=EMBEDDINGS)
    for parameter in model.model.visual.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=EMBEDDINGS)
    if wide:
        widen(model)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = IMAGE_PROCESSOR | {"image_mean": 3 * [mean]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def widen(model: Qwen2_5_VLForConditionalGeneration) -> None:
    """Scales the layers to a width of 128, for which 0.02 is too small, and features to the norm of embeddings.

    Without it a feature has 15 times the norm of an embedding, and what a layer adds to it, such as its position, is a small part
    of the sum.
    """
    for parameter in model.model.language_model.layers.parameters():
        if parameter.dim() == 2:
            parameter.mul_(LAYERS)
    model.model.visual.merger.mlp[-1].weight.mul_(FEATURES)


def merged_texts() -> Iterator[str]:
    """What stands around the values, each twice: a pair of symbols that occurs once is not merged."""
    yield from 2 * ["system\n", "user\n", "assistant\n", "\n", "\n# Tools\n", "\nclick(x, y)\n", '", "y": "A"}}\n']
    for name, parameter in TOOLS.items():
        yield from 2 * [f"{name}({parameter})\n", f'\n{{"name": "{name}", "arguments": {{"{parameter}": "A"}}}}\n']
    yield from 2 * [
        "What is the sum of picture A?",
        "Read it.",
        "Walk in world A.",
        "Open page A.",
        "Click",
        "code A",
        "Where is red",
    ]
    yield from 2 * [
        f" {word}" for word in (*COLOURS, "left", "right", "up", "down", "then", "and", "goal", "lost", "done")
    ]
    yield from 2 * list(("left", "right", "up", "down", "goal", "lost", *COLOURS))


if __name__ == "__main__":
    main()
