"""A small byte-level tokenizer, chat templates in the manner of three model families, and conversations."""

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sampler.core.rendering.template import ChatTemplate

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|bot|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
ADDED = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
]
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nCall them within <tool_call></tool_call> tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {%- set call = tool_call.function %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + call.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# The end of a turn is not followed by a line break; contents are trimmed; results are JSON.
LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {{- message.content | trim }}{{- message.tool_calls[0].function | tojson }}
    {%- elif message.role == 'tool' %}{{- message.content | tojson }}
    {%- else %}{{- message.content | trim }}{%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

# Results must answer a call with the same id; a generation block; loop controls.
STRICT = """{%- set ns = namespace(ids=[]) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{%- continue %}{%- endif %}
    {%- if message.role == 'tool' and message.tool_call_id not in ns.ids %}
        {{- raise_exception('a result without a call') }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set ns.ids = message.tool_calls | default([]) | map(attribute='id') | list %}
        {%- generation %}{{- '<|bot|>' + message.content + eos_token }}{%- endgeneration %}
    {%- else %}{{- '[' + message.role + '] ' + message.content + '\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|bot|>' }}{%- endif %}
"""

# White space around blocks, which the environment's options remove.
LOOSE = """
{% for message in messages %}
    {% if message.role != 'system' %}
[{{ message.role }}] {{ message.content }}<|im_end|>
    {% endif %}
{% endfor %}
    {% if add_generation_prompt %}
[bot]
    {% endif %}
"""

TEMPLATES = {"qwen": QWEN, "llama": LLAMA, "strict": STRICT}
NAMED = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": 'Looks "it" up <b>&</b> é',
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
        },
    }
]


@cache
def small_tokenizer() -> Tokenizer:
    return byte_level_tokenizer(tuple(SPECIAL), tuple(ADDED))


@cache
def byte_level_tokenizer(special: tuple[str, ...], added: tuple[str, ...]) -> Tokenizer:
    """In the manner of Qwen, Llama 3, DeepSeek and most others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    words = [
        "system user assistant tool lookup name arguments the answer is im_end im_start <|im_end|> \n\n == return "
    ] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*words, QWEN, Path(__file__).read_text()], trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    return tokenizer


@cache
def chat(name: str) -> ChatTemplate:
    return ChatTemplate.build(small_tokenizer(), TEMPLATES[name], NAMED)


def save_model_dir(folder: Path, template_text: str, in_config: bool) -> Path:
    """A model folder as `save_pretrained` leaves it, without weights."""
    folder.mkdir(exist_ok=True)
    small_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": NAMED["bos_token"],
        "eos_token": {"__type": "AddedToken", "content": NAMED["eos_token"], "special": True},
        "pad_token": None,
    }
    if in_config:
        config["chat_template"] = template_text
    else:
        (folder / "chat_template.jinja").write_text(template_text)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def call_message(content: str = "", x: str = "A") -> dict[str, object]:
    function = {"name": "lookup", "arguments": {"x": x}}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }


def result_message(content: str) -> dict[str, object]:
    return {"role": "tool", "name": "lookup", "tool_call_id": "call00000", "content": content}
