"""Chat templates of vision models, over the tiny models of `tests.shared.vision_models`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer

from sampler.core.rendering.template import ChatTemplate
from shared.documents.content import references_in
from tests.shared.vision_models import write_vision_model

# As the models' authors publish them; SmolVLM's shows nothing of a content that is a plain text.
PUBLISHED = {
    "smolvlm": (
        "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
        "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
        "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    ),
    "qwen2_5_vl": (
        "{% set image_count = namespace(value=0) %}{% for message in messages %}"
        "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "{% endif %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
        "{% else %}{% for content in message['content'] %}"
        "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
        "{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}"
        "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}


def vision_template(folder: Path, family: str, *, published: bool) -> ChatTemplate:
    """Of a tiny model written into `folder`: the bundled model's template with blocks, or the published one."""
    write_vision_model(folder, family, weights=False)
    if published and family == "smolvlm":
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["<end_of_utterance>"], special_tokens=True)
        tokenizer.save_pretrained(folder)
    return ChatTemplate.from_dir(folder, template_text=PUBLISHED[family] if published else None)


def whole_prompt(template: ChatTemplate, messages: Sequence[dict[str, Any]]) -> list[int]:
    """As transformers makes it: the text by jinja, each image's token replaced in order, and one call of the tokenizer."""
    assert template.folder is not None
    assert template.images is not None
    family = template.images.family
    shown = [
        {
            **one,
            "content": [{"type": "text", "text": one["content"]}]
            if isinstance(one["content"], str)
            else one["content"],
        }
        for one in messages
    ]
    text = (
        jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        .from_string(template.text)
        .render(messages=shown, add_generation_prompt=True, **template.special_tokens)
    )
    parts = text.split(family.image_token)
    images = [family.tokens(int(one["height"]), int(one["width"])) for one in references_in(messages)]
    joined = "".join(part + image for part, image in zip(parts, [*images, ""], strict=True))
    ids: list[int] = AutoTokenizer.from_pretrained(template.folder).encode(joined, add_special_tokens=False)
    return ids


def reference(number: int, height: int, width: int) -> dict[str, Any]:
    return {
        "type": "image",
        "sha256": hashlib.sha256(b"%d" % number).hexdigest(),
        "width": width,
        "height": height,
        "num_bytes": 100,
    }
