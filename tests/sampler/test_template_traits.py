"""Traits of published chat templates that the families under `templates/` do not have: the context equals a full rendering."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from sampler.core.rendering.context import Context
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from shared.documents.states import BranchCause
from shared.errors import ConfigError
from tests.sampler.chats import byte_level_tokenizer
from tests.sampler.conversations import play
from tests.sampler.families import FAMILIES, Family

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|end_text|>", "<|eom|>", "<|text|>", "<|thought|>", "<|/thought|>")
ADDED = ("<think>", "</think>", "<calls>", "</calls>")
LAST_QUESTION = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
"""
CALLS = """{{- '<calls>' }}{%- for c in m.tool_calls %}
{{- c.function.name + ' ' + c.function.arguments | tojson + ';' }}{%- endfor %}{{- '</calls>' }}"""
ASKED = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"


def turns(assistant: str, prompt: str = ASKED) -> str:
    others = "{{- m.content + '<|im_end|>\\n' }}"
    return f"""{LAST_QUESTION}{{%- for m in messages %}}{{{{- '<|im_start|>' + m.role + '\\n' }}}}
{{%- if m.role == 'assistant' %}}{assistant}{{%- else %}}{others}{{%- endif %}}{{%- endfor %}}{prompt}"""


@dataclass(frozen=True)
class Trait(Family):
    text: str = ""

    def template(self, mode: str) -> ChatTemplate:
        return _built(self.text, tuple(self.modes[mode].items()))


@cache
def _built(text: str, variables: tuple[tuple[str, Any], ...]) -> ChatTemplate:
    return ChatTemplate.build(byte_level_tokenizer(SPECIAL, ADDED), text, {"eos_token": "<|im_end|>"}, dict(variables))


def trait(name: str, text: str, **fields: Any) -> Trait:
    return Trait(**{"name": name, "parser": "hermes", "special": SPECIAL, "added": ADDED, "text": text} | fields)


TRAITS = (
    # As MiniMax-M2: the blank before the calls stays when the reasoning before it goes.
    trait(
        "a line break before calls",
        turns(
            "{%- if m.reasoning_content and loop.index0 > ns.last %}"
            "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{- m.content }}"
            "{%- if m.tool_calls %}{{- '\\n' }}" + CALLS + "{%- endif %}{{- '<|im_end|>\\n' }}",
            "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}",
        ),
        thinks=("off",),
    ),
    # As Nemotron 3: an empty block of reasoning stays behind in its place.
    trait(
        "a line break before calls, behind reasoning that was emptied",
        turns(
            "{%- if m.reasoning_content and loop.index0 > ns.last %}"
            "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n' }}{%- else %}{{- '<think></think>' }}{%- endif %}"
            "{{- m.content }}"
            "{%- if m.tool_calls %}{{- '\\n' }}" + CALLS + "{%- endif %}{{- '<|im_end|>\\n' }}",
            "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}",
        ),
        thinks=("off",),
    ),
    # As functionary 3.1, Cohere's and others: a turn of calls ends with a token of its own.
    trait(
        "calls that end otherwise",
        turns("{{- m.content }}{%- if m.tool_calls %}" + CALLS + "{{- '<|eom|>' }}{%- else %}{{- '<|im_end|>' }}{%- endif %}"),
        ends=("<|im_end|>", "<|eom|>"),
    ),
    # As Command R7B: the prompt for the next reply is always there, and says what older turns do not show.
    trait(
        "a prompt that nobody asked for",
        turns(
            "{%- if m.tool_calls %}" + CALLS + "{%- else %}{{- m.content + '<|end_text|>' }}{%- endif %}{{- '<|im_end|>' }}",
            "{{- '<|im_start|>assistant\\n<|thought|><|/thought|>' }}",
        ),
        ends=("<|end_text|>", "<|im_end|>"),
        text_beside_call=False,
    ),
    # As Command R7B: a token opens the answer, with reasoning before it or without.
    trait(
        "a token before the answer",
        turns(
            "{%- if m.reasoning_content and loop.index0 > ns.last %}"
            "{{- '<|thought|>' + m.reasoning_content + '<|/thought|>' }}{%- endif %}"
            "{%- if m.tool_calls %}" + CALLS + "{%- else %}{{- '<|text|>' + m.content }}{%- endif %}{{- '<|im_end|>' }}"
        ),
        thinks=("off",),
        text_beside_call=False,
    ),
    # As Gemma 4 and Cohere's: nothing but tokens around reasoning, which are special ones; without it the prompt has them.
    trait(
        "special tokens around reasoning",
        turns(
            "{%- if m.reasoning_content and loop.index0 > ns.last %}"
            "{{- '<|thought|>' + m.reasoning_content + '<|/thought|>' }}{%- endif %}"
            "{%- if m.tool_calls %}" + CALLS + "{%- endif %}{{- m.content + '<|im_end|>\\n' }}",
            ASKED.replace("\\n' }}", "\\n' }}{%- if not thinking %}{{- '<|thought|><|/thought|>' }}{%- endif %}"),
        ),
        modes={"on": {"thinking": True}, "off": {}},
        thinks=("on",),
    ),
)  # fmt: skip
MODES = [pytest.param(trait, mode, id=f"{trait.name}, {mode}") for trait in TRAITS for mode in trait.modes]


@pytest.mark.parametrize(("family", "mode"), MODES)
def test_every_prompt_has_the_ids_of_a_full_rendering(family: Trait, mode: str) -> None:
    for seed in range(4):
        for check in play(family, mode, seed):
            assert check.found == check.wanted
            shared = check.prompt.shared_length
            assert check.before[:shared] + check.prompt.added == check.found
            assert shared == len(check.before) or check.prompt.cause is BranchCause.TEMPLATE_REWRITE


def test_the_header_of_the_next_reply_is_not_an_end_of_turn() -> None:
    """Apertus shows the results of tools as text of the model's turn, so that nothing ends a plain reply before them."""
    text = turns(
        "{{- m.content + ('' if not loop.last and messages[loop.index0 + 1].role == 'tool' else '<|im_end|>') }}"
    )
    text = text.replace(
        "{{- '<|im_start|>' + m.role", "{{- '[' + m.content + ']' if m.role == 'tool' else '<|im_start|>' + m.role"
    )
    template = _built(text.replace("{%- else %}{{- m.content", "{%- elif m.role != 'tool' %}{{- m.content"), ())
    assert [template.tokenizer.id_to_token(i) for i in turn_format(template).end_ids] == ["<|im_end|>"]


def test_a_template_that_writes_one_turn_as_two_is_refused() -> None:
    """As gpt-oss: reasoning is a message of its own, which ends as every other."""
    text = turns(
        "{%- if m.reasoning_content %}{{- '<|thought|>' + m.reasoning_content + '<|im_end|><|im_start|>assistant\\n' }}"
        "{%- endif %}{{- m.content + '<|im_end|>\\n' }}"
    )
    with pytest.raises(ConfigError, match=r'"<\|im_end\|>" ends reasoning and also a turn'):
        turn_format(_built(text, ()))


DEEPSEEK = FAMILIES["deepseek_v3"]
CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{{}}\n```<｜tool▁call▁end｜>"
# As DeepSeek-V3's own: the header before a reply is written with its first call alone.
ONE_HEADER = """{%- set ns = namespace(called=false, told=false) %}{{- bos_token }}{%- for m in messages %}
{%- if m.role == 'user' %}{%- set ns.told = false %}{{- '<｜User｜>' + m.content }}
{%- elif m.role == 'assistant' and m.tool_calls %}{%- set ns.told = false %}{%- for c in m.tool_calls %}
{{- '\\n' if ns.called else '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
{{- '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name }}
{{- '\\n```json\\n{}\\n```<｜tool▁call▁end｜>' }}{%- set ns.called = true %}{%- endfor %}{{- '<｜tool▁calls▁end｜>' + eos_token }}
{%- elif m.role == 'assistant' %}
{{- ('<｜tool▁outputs▁end｜>' if ns.told else '<｜Assistant｜>') + m.content + eos_token }}{%- set ns.told = false %}
{%- elif m.role == 'tool' %}{%- set ns.told = true %}{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- endif %}{%- endfor %}{%- if ns.told %}{{- '<｜tool▁outputs▁end｜>' }}{%- endif %}
{%- if add_generation_prompt and not ns.told %}{{- '<｜Assistant｜>' }}{%- endif %}"""


@pytest.mark.parametrize("question", ["And B?", "two\nlines", "a <｜User｜> in it", ""])
def test_a_question_before_a_reply_that_the_template_shows_without_its_header_stays_in_the_prompt(
    question: str,
) -> None:
    tokenizer = byte_level_tokenizer(DEEPSEEK.special, DEEPSEEK.added)
    named = {"eos_token": DEEPSEEK.eos, "bos_token": DEEPSEEK.bos}
    template = ChatTemplate.build(tokenizer, ONE_HEADER, named, {})
    calls: dict[str, Any] = {"role": "assistant", "content": ""}
    calls["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}]
    called = f"<｜tool▁calls▁begin｜>{CALL.format('f')}<｜tool▁calls▁end｜>"
    context = Context(template, [])
    context.start([{"role": "user", "content": "What is A?"}])
    for text, message, new in (
        (called, calls, {"role": "tool", "content": "r1", "tool_call_id": "c"}),
        ("A is 1", {"role": "assistant", "content": "A is 1"}, {"role": "user", "content": question}),
        (called, calls, {"role": "tool", "content": "r2", "tool_call_id": "c"}),
    ):
        ids = [*template.encode_marked(text), template.token_id(DEEPSEEK.eos)]
        prompt = context.extend([one for one in ids if one is not None], [new], message)
    assert prompt.cause is BranchCause.TEMPLATE_REWRITE
    result = "<｜tool▁output▁begin｜>r2<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    assert template.decode(context.ids).endswith(
        f"A is 1{DEEPSEEK.eos}<｜User｜>{question}{called}{DEEPSEEK.eos}{result}"
    )


# As Gemma 1 and 2: no system message, and roles alternate.
NO_SYSTEM = """{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{%- for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}
{{- '<|im_start|>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>model\\n' }}{% endif %}"""
USER: dict[str, Any] = {"role": "user", "content": "2+2?"}


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([{"role": "system", "content": "Be brief."}, USER], "Be brief.\n\n2+2?"),
        ([{"role": "developer", "content": "Be brief."}, USER], "Be brief.\n\n2+2?"),
        ([{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, USER], "A\n\nB\n\n2+2?"),
        ([{"role": "system", "content": "Alone."}], "Alone."),
        ([{"role": "system", "content": ""}, USER], "2+2?"),
        ([USER], "2+2?"),
    ],
)
def test_without_a_system_role_instructions_stand_before_the_question(messages: Any, shown: str) -> None:
    template = ChatTemplate.build(
        byte_level_tokenizer(SPECIAL, ADDED), NO_SYSTEM, {"eos_token": "<|im_end|>", "bos_token": ""}, {}
    )
    context = Context(template, [])
    context.start(messages)
    whole = f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>model\n"
    assert template.decode(context.ids) == whole
    reply = [*template.encode("4"), template.token_id("<|im_end|>") or 0]
    context.extend(reply, [{"role": "system", "content": "Go on."}, {"role": "user", "content": "3+3?"}])
    assert (
        template.decode(context.ids)
        == f"{whole}4<|im_end|>\n<|im_start|>user\nGo on.\n\n3+3?<|im_end|>\n<|im_start|>model\n"
    )
