"""Model families: their chat template (`templates/`), a small tokenizer with their special tokens, and how their models write.

`written` gives the text that a model of the family samples when it writes exactly as its template does: it is cut out of the
template's own rendering, so that a template is tested with its own spelling, blanks and order.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers

from sampler.core.rendering.marks import MARK_END, MARK_START
from sampler.core.rendering.template import ChatTemplate, Message
from sampler.core.rendering.turn_format import turn_format
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


@dataclass(frozen=True)
class Written:
    """`before`: the rendering, marked, up to the reply; `text`: what the model samples; `end`: the token that ends it."""

    before: str
    text: str
    end: str


@dataclass(frozen=True)
class Family:
    """`modes`: template variables by name of the mode; `thinks`: modes in which the model reasons; `after_result`: whether it
    reasons after a tool's result too; `text_beside_call`: whether the template shows text beside a call; `ends`: what ends a
    reply without and with calls, where that is not `eos`."""

    name: str
    parser: str
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    eos: str = "<|im_end|>"
    ends: tuple[str, str] | None = None
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

    def message(self, mode: str, reply: Reply) -> dict[str, Any]:
        """The reply as those send it who parse it, for a full rendering."""
        as_text = turn_format(self.template(mode)).arguments_as_text
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning:
            message[self.reasoning_key] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": c.json if as_text else c.arguments},
                }
                for c in reply.calls
            ]
        return message

    def written(self, mode: str, messages: Sequence[Message], tools: Sequence[Message], reply: Reply) -> Written:
        """Reasoning that a template hides stands where the model writes it, first."""
        template = self.template(mode)
        prompt = template.render_marked(messages, tools, True)
        shown = template.render_marked([*messages, self.message(mode, reply)], tools)
        start = _where_they_part(template, prompt, shown)
        end = self.ends[bool(reply.calls)] if self.ends else self.eos
        text = shown[start:].rpartition(end)[0] if end in shown[start:] else shown[start:]
        hidden = reply.reasoning if reply.reasoning not in text else ""
        return Written(shown[:start], hidden + text, end)


def _where_they_part(template: ChatTemplate, prompt: str, shown: str) -> int:
    """Where in `shown` that ends which it has in common with `prompt`: behind the last control token that both wrote alike,
    and the text behind it that is the same. Some templates end a prompt with other blanks than they show later."""
    tokens = re.compile(f"{MARK_START}.*?{MARK_END}|{template.added_re.pattern}", re.DOTALL)
    before, after = 0, 0
    for mine, other in zip(tokens.finditer(prompt), tokens.finditer(shown), strict=False):
        if mine.group() != other.group():
            break
        before, after = mine.end(), other.end()
    left, right = (tokens.split(text, maxsplit=1)[0] for text in (prompt[before:], shown[after:]))
    return after + next((at for at in range(len(left)) if left[at] != right[at : at + 1]), len(left))


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
        Family("qwen25", "qwen25", _CHATML, _QWEN_ADDED[:4]),
        Family("qwen3", "qwen", _CHATML, _QWEN_ADDED, modes=_BOTH, thinks=("on",)),
        Family("qwen3_coder", "qwen3_coder", _CHATML, _QWEN_ADDED),
        Family(
            "llama31", "llama3", _LLAMA, eos="<|eot_id|>", bos="<|begin_of_text|>",
            text_beside_call=False, most_calls=1,
        ),
        Family("mistral_nemo", "mistral", _MISTRAL, eos="</s>", bos="<s>", text_beside_call=False),
        Family(
            "mistral_small", "mistral", _MISTRAL, eos="</s>", bos="<s>", text_beside_call=False,
            sentencepiece=True,
        ),
        Family("deepseek_v3", "deepseekv3", _DEEPSEEK, _DEEPSEEK_ADDED, eos=_DEEPSEEK[1], bos=_DEEPSEEK[0]),
        Family(
            "deepseek_v31", "deepseekv3", _DEEPSEEK, _DEEPSEEK_ADDED, eos=_DEEPSEEK[1], bos=_DEEPSEEK[0],
            modes={"on": {"thinking": True}, "off": {}}, thinks=("on",), after_result=False,
        ),
        Family(
            "kimi_k2", "kimi_k2", _KIMI, _KIMI_ADDED, eos="[EOS]", ends=("<|im_end|>", "<|im_end|>"), bos="[BOS]",
            kimi_ids=True,
        ),
        Family(
            "glm45", "glm45", _GLM, _GLM_ADDED, eos="<|endoftext|>", ends=("<|user|>", "<|observation|>"), modes=_BOTH,
            thinks=("on",),
        ),
        Family(
            "minicpm3", "minicpm", _MINICPM, modes={"on": {}, "off": {}}, thinks=("on",),
            reasoning_key="thought", sentencepiece=True,
        ),
    )
}  # fmt: skip
