"""Model families: their chat template (`templates/`), a small tokenizer with their special tokens, and how their models write.

`write` gives the text that a model of the family samples for a reply when it writes exactly as its template would.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers

from sampler.template import ChatTemplate
from tests.sampler.chats import byte_level_tokenizer

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: dict[str, Any]

    @property
    def json(self) -> str:
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Reply:
    content: str = ""
    reasoning: str = ""
    calls: Sequence[Call] = ()


Writer = Callable[[Reply, bool], str]


@dataclass(frozen=True)
class Family:
    """`modes`: template variables by name of the mode; `thinks`: modes in which the model reasons; `after_result`: whether it
    reasons after a tool's result too; `text_beside_call`: whether the template shows text beside a call."""

    name: str
    parser: str
    write: Writer
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    eos: str = "<|im_end|>"
    bos: str = ""
    modes: dict[str, dict[str, Any]] = field(default_factory=lambda: {"off": {}})
    thinks: tuple[str, ...] = ()
    reasoning_key: str = "reasoning_content"
    after_result: bool = True
    text_beside_call: bool = True
    most_calls: int = 3
    sentencepiece: bool = False
    kimi_ids: bool = False

    def template(self, mode: str) -> ChatTemplate:
        return _template(self.name, mode)

    def call_id(self, number: int, name: str) -> str:
        return f"functions.{name}:{number}" if self.kimi_ids else f"c{number:08d}"

    def message(self, reply: Reply, arguments_as_text: bool) -> dict[str, Any]:
        """The reply as those send it who parse it, for a full rendering."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning:
            message[self.reasoning_key] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": c.json if arguments_as_text else c.arguments},
                }
                for c in reply.calls
            ]
        return message


# Where published templates lie that stand in for ours, under the same names. See `template_table --published`.
PUBLISHED: list[Path] = []


@cache
def _template(name: str, mode: str) -> ChatTemplate:
    family = FAMILIES[name]
    text = next(path for folder in (*PUBLISHED, FOLDER) if (path := folder / f"{name}.jinja").is_file()).read_text()
    named = {"eos_token": family.eos} | ({"bos_token": family.bos} if family.bos else {})
    make = sentencepiece_tokenizer if family.sentencepiece else byte_level_tokenizer
    return ChatTemplate.build(make(family.special, family.added), text, named, family.modes[mode])


@cache
def sentencepiece_tokenizer(special: tuple[str, ...], added: tuple[str, ...]) -> Tokenizer:
    """In the manner of Llama 2 and MiniCPM: blanks are part of words, unknown characters are bytes, a line break is one too."""
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    corpus = " ".join(path.read_text() for path in sorted(FOLDER.glob("*.jinja"))).splitlines()
    tokenizer.train_from_iterator(corpus, trainer)
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    state["model"] |= {"byte_fallback": True, "fuse_unk": True}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    return tokenizer


# ---------------------------------------------------------------------- how each family writes


def hermes_call(call: Call) -> str:
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.json}}}\n</tool_call>'


def coder_call(call: Call) -> str:
    parameters = "".join(f"<parameter={k}>\n{_bare(v)}\n</parameter>\n" for k, v in call.arguments.items())
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def write_qwen(reply: Reply, thinking: bool) -> str:
    thought = f"<think>\n{reply.reasoning}\n</think>\n\n" if thinking else ""
    return thought + "\n".join([*([reply.content] if reply.content else []), *map(hermes_call, reply.calls)])


def write_qwen3_coder(reply: Reply, thinking: bool) -> str:
    gap = "\n\n" if reply.content and reply.calls else ""
    return reply.content + gap + "\n".join(map(coder_call, reply.calls))


def write_llama(reply: Reply, thinking: bool) -> str:
    if not reply.calls:
        return reply.content
    return "; ".join(f'{{"name": "{c.name}", "parameters": {c.json}}}' for c in reply.calls)


def write_mistral(reply: Reply, thinking: bool, opening: str = "[TOOL_CALLS][") -> str:
    if not reply.calls:
        return reply.content
    calls = [f'{{"name": "{c.name}", "arguments": {c.json}, "id": "{c.id}"}}' for c in reply.calls]
    return opening + ", ".join(calls) + "]"


def write_mistral_small(reply: Reply, thinking: bool) -> str:
    return write_mistral(reply, thinking, "[TOOL_CALLS] [")


def write_deepseek_v3(reply: Reply, thinking: bool) -> str:
    calls = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{c.name}\n```json\n{c.json}\n```<｜tool▁call▁end｜>"
        for c in reply.calls
    ]
    section = f"<｜tool▁calls▁begin｜>{chr(10).join(calls)}<｜tool▁calls▁end｜>" if calls else ""
    return reply.content + section


def write_deepseek_v31(reply: Reply, thinking: bool) -> str:
    calls = "".join(f"<｜tool▁call▁begin｜>{c.name}<｜tool▁sep｜>{c.json}<｜tool▁call▁end｜>" for c in reply.calls)
    section = f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>" if calls else ""
    return (f"{reply.reasoning}</think>" if thinking else "") + reply.content + section


def write_kimi(reply: Reply, thinking: bool) -> str:
    calls = "".join(
        f"<|tool_call_begin|>{c.id}<|tool_call_argument_begin|>{c.json}<|tool_call_end|>" for c in reply.calls
    )
    return reply.content + (f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>" if calls else "")


def write_glm(reply: Reply, thinking: bool) -> str:
    def call_text(call: Call) -> str:
        pairs = [f"<arg_key>{k}</arg_key>\n<arg_value>{_bare(v)}</arg_value>\n" for k, v in call.arguments.items()]
        return f"\n<tool_call>{call.name}\n{''.join(pairs)}</tool_call>"

    thought = f"\n<think>{reply.reasoning}</think>" if thinking else ""
    return thought + (f"\n{reply.content}" if reply.content else "") + "".join(map(call_text, reply.calls))


def write_minicpm(reply: Reply, thinking: bool) -> str:
    thought = f"<|thought_start|>\n{reply.reasoning}\n<|thought_end|>\n" if reply.reasoning else ""
    lines = [
        f"{c.name}({','.join(f'{k}={json.dumps(v, ensure_ascii=False)}' for k, v in c.arguments.items())})\n"
        for c in reply.calls
    ]
    calls = f"<|tool_call_start|>\n```python\n{''.join(lines)}```\n<|tool_call_end|>\n" if lines else ""
    return thought + calls + reply.content


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")  # fmt: skip
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
_DEEPSEEK_ADDED = (
    "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁sep｜>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
)  # fmt: skip
_KIMI = ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
_KIMI_ADDED = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
               "<|tool_call_argument_begin|>", "<|tool_call_end|>")  # fmt: skip
_GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_GLM_ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
              "<tool_response>", "</tool_response>")  # fmt: skip
_LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
_MINICPM = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|thought_start|>", "<|thought_end|>", "<|tool_call_start|>",
            "<|tool_call_end|>")  # fmt: skip
_BOTH: dict[str, dict[str, Any]] = {"on": {}, "off": {"enable_thinking": False}}

FAMILIES = {
    family.name: family
    for family in (
        Family("qwen25", "qwen25", write_qwen, _CHATML, _QWEN_ADDED[:4]),
        Family("qwen3", "qwen", write_qwen, _CHATML, _QWEN_ADDED, modes=_BOTH, thinks=("on",)),
        Family("qwen3_coder", "qwen3_coder", write_qwen3_coder, _CHATML, _QWEN_ADDED),
        Family(
            "llama31", "llama3", write_llama, _LLAMA, eos="<|eot_id|>", bos="<|begin_of_text|>",
            text_beside_call=False, most_calls=1,
        ),
        Family("mistral_nemo", "mistral", write_mistral, _MISTRAL, eos="</s>", bos="<s>", text_beside_call=False),
        Family(
            "mistral_small", "mistral", write_mistral_small, _MISTRAL, eos="</s>", bos="<s>", text_beside_call=False,
            sentencepiece=True,
        ),
        Family("deepseek_v3", "deepseekv3", write_deepseek_v3, _DEEPSEEK, _DEEPSEEK_ADDED, eos=_DEEPSEEK[1], bos=_DEEPSEEK[0]),
        Family(
            "deepseek_v31", "deepseekv3", write_deepseek_v31, _DEEPSEEK, _DEEPSEEK_ADDED, eos=_DEEPSEEK[1], bos=_DEEPSEEK[0],
            modes={"on": {"thinking": True}, "off": {}}, thinks=("on",), after_result=False,
        ),
        Family("kimi_k2", "kimi_k2", write_kimi, _KIMI, _KIMI_ADDED, eos="[EOS]", bos="[BOS]", kimi_ids=True),
        Family("glm45", "glm45", write_glm, _GLM, _GLM_ADDED, eos="<|endoftext|>", modes=_BOTH, thinks=("on",)),
        Family(
            "minicpm3", "minicpm", write_minicpm, _MINICPM, modes={"on": {}, "off": {}}, thinks=("on",),
            reasoning_key="thought", sentencepiece=True,
        ),
    )
}  # fmt: skip
