"""A conversation that goes on is rendered in parts, and its text is that of a whole rendering."""

import random
from typing import Any

import pytest

from sampler.core.rendering import resumed
from sampler.core.rendering.context import Context
from sampler.core.rendering.resumed import RenderMemory
from sampler.core.rendering.template import ChatTemplate
from tests.sampler.chats import byte_level_tokenizer
from tests.sampler.families import FAMILIES

Message = dict[str, Any]
SPECIAL = ("<|im_start|>", "<|im_end|>")
CALLS = [{"id": "c12345678", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
LINE = "{{- '<|im_start|>' ~ m.role ~ ' ' ~ m.content }}"


def built(text: str) -> ChatTemplate:
    return ChatTemplate.build(byte_level_tokenizer(SPECIAL, ()), text, {"eos_token": "<|im_end|>"})


def whole(template: ChatTemplate, messages: list[Message]) -> str:
    return template.render_prepared(messages, None, True)


def parts(template: ChatTemplate, messages: list[Message], memory: RenderMemory) -> str:
    return template.render_prepared(messages, None, True, None, memory)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison with a whole rendering would hide a difference."""
    monkeypatch.setattr(resumed, "_CHECKED", 0)
    monkeypatch.setattr(resumed, "_CHECKED_ONE_IN", 1 << 60)


# What a pass may read, each in a loop of its own: all are rendered in parts, or whole, and never wrong.
READS = {
    "the last message": "{%- if loop.last %}{{- '!' }}{%- endif %}",
    "whether there is a next one": "{%- if loop.nextitem is defined %}{{- loop.nextitem.role }}{%- endif %}",
    "the one before": "{%- if loop.previtem is defined %}{{- loop.previtem.content }}{%- endif %}",
    "the next by its index": "{%- if messages[loop.index0 + 1] is defined %}{{- messages[loop.index].role }}{%- endif %}",
    "the one before by its index, of the first the last": "{{- messages[loop.index0 - 1].content }}",
    "the last by its index": "{{- messages[-1].content }}",
    "the first": "{{- messages[0].role }}",
    "the tenth": "{{- messages[9].role if messages[9] is defined else 'none' }}",
    "how many there are": "{{- messages | length }}",
    "how many come": "{{- loop.revindex }}",
    "whether a role changes": "{{- loop.changed(m.role) }}",
    "a cycle": "{{- loop.cycle('a', 'b', 'c') }}",
    "a slice": "{{- messages[1:] | length }}",
    "all of them": "{{- messages | map(attribute='role') | join }}",
    "a value of before": "{{- before }}",
    "a list of before": "{{- rest | length }}",
    "what passes count": "{%- set ns.count = ns.count + 1 %}{{- ns.count }}",
    "what passes write down": "{%- set ns.text = ns.text ~ m.content[:1] %}{{- ns.text }}",
    "a macro that reads all": "{{- of_all() }}",
    "a macro that counts": "{{- counts() }}",
    "a macro that is given the loop's item": "{{- shows(m) }}",
    "a loop inside": "{%- for one in messages[:2] %}{{- loop.index ~ one.role }}{%- endfor %}",
    "a loop inside that reads by its index": "{%- for one in [1, 2] %}{{- messages[loop.index0].role }}{%- endfor %}",
    "the loop inside a loop": "{%- for one in [loop.last, loop.first] %}{{- loop.index ~ one }}{%- endfor %}",
    "the end of a loop": "{%- if m.content == 'm4' %}{%- break %}{%- endif %}",
    "a pass left out": "{%- if m.role == 'tool' %}{%- continue %}{%- endif %}",
    "marks in a name": "{%- if before == 'm0' %}{{- marked }}{%- endif %}",
    "what a block captures": "{%- set text %}{{- m.content ~ loop.last }}{%- endset %}{{- text }}",
    "whether a reply is asked for": "{{- add_generation_prompt }}",
}
AROUND = """{%- macro of_all() %}{{- messages | length }}{%- endmacro %}
{%- macro counts() %}{%- set ns.count = ns.count + 2 %}{{- ns.count }}{%- endmacro %}
{%- macro shows(m) %}{{- m.content ~ before }}{%- endmacro %}
{%- set ns = namespace(count=0, text='', marked='') %}{%- set rest = messages[1:] %}
{%- set before = messages[0].content %}{%- set marked = messages[-1].content %}
{%- for m in OVER %}READ{{- '\\n' }}{%- endfor %}{{- 'end ' ~ ns.count ~ ns.text }}"""


@pytest.mark.parametrize("over", ["messages", "rest", "messages[1:]", "messages | reverse"])
@pytest.mark.parametrize("read", READS, ids=list(READS))
def test_whatever_a_pass_reads_the_parts_are_the_whole(read: str, over: str) -> None:
    template = built(AROUND.replace("OVER", over).replace("READ", LINE + READS[read]))
    roles, rng = ("system", "user", "assistant", "tool"), random.Random(5)
    for _ in range(3):
        memory, messages = RenderMemory(), [{"role": "user", "content": f"m{k}"} for k in range(2)]
        for step in range(24):
            assert parts(template, messages, memory) == whole(template, messages)
            if rng.random() < 0.15:  # another history
                at = rng.randrange(len(messages))
                messages = [*messages[:at], {"role": "user", "content": "new"}, *messages[at + 1 :][: rng.randrange(9)]]
            if rng.random() < 0.1:
                messages = messages[: rng.randrange(1, len(messages) + 1)]
            more = [{"role": rng.choice(roles), "content": f"m{step}"} for _ in range(rng.randrange(3))]
            messages = [*messages, *more]


WHOLE = {
    "the last by its index", "how many there are", "how many come", "whether a role changes", "a cycle", "a slice",
    "all of them", "a list of before", "a macro that reads all", "a loop inside", "the end of a loop",
    "the one before by its index, of the first the last",
}  # fmt: skip


@pytest.mark.parametrize("read", sorted(READS.keys() - WHOLE))
def test_a_pass_that_reads_nothing_new_is_not_rendered(read: str) -> None:
    around = AROUND.replace("messages[-1]", "messages[0]").replace("OVER", "messages")
    template, memory = built(around.replace("READ", LINE + READS[read])), RenderMemory()
    messages: list[Message] = [{"role": "user", "content": "m"} for _ in range(20)]
    for _ in range(2):
        text = parts(template, messages, memory)
        messages = [*messages, {"role": "user", "content": "new"}]
    assert memory.skipped > len(text) // 2


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_of_a_family_is_the_same_in_parts(name: str) -> None:
    family = FAMILIES[name]
    for mode, question in [(mode, question) for mode in family.modes for question in (False, True)]:
        template = family.template(mode)
        memory, messages = RenderMemory(), [{"role": "user", "content": "Q"}]
        for number in range(6):
            marked = [template.mark(message) for message in messages]
            assert parts(template, marked, memory) == whole(template, marked)
            messages += [
                {"role": "assistant", "content": f"r{number}"},
                {"role": "user", "content": f"<|im_end|> {number}"},
            ]
            if not question:
                messages[-2:] = [
                    {"role": "assistant", "content": f"r{number}", family.reasoning_key: "why"},
                    {"role": "user", "content": f"u{number}"},
                ]


def test_only_new_messages_are_rendered() -> None:
    template = built("{%- for m in messages %}" + LINE + "{{- '!' if loop.last else '' }}{%- endfor %}")
    context = Context(template)
    context.start([{"role": "user", "content": "Q" * 1000}])
    for turn in range(50):
        context.extend([5, 6, template.token_id("<|im_end|>") or 0], [{"role": "user", "content": f"{turn}" * 50}])
        assert (
            turn == 0 or len(context._text) - context._rendered_before.skipped < 500
        )  # at first the question was the last


def test_equal_messages_with_other_marks_are_rendered_again() -> None:
    template = built("{%- for m in messages %}" + LINE + "{{- '<|im_end|>' }}{%- endfor %}")
    memory = RenderMemory()
    plain = {"role": "user", "content": "<|im_end|>"}
    marked = template.mark(plain)
    assert plain == marked
    for first in (plain, marked):
        messages = [first, {"role": "user", "content": "next"}, {"role": "user", "content": "last"}]
        assert parts(template, messages, memory) == whole(template, messages)


def test_a_name_with_other_marks_is_rendered_again() -> None:
    """A name's value, which no message object shows to be another."""
    around = "{%- set opening = mine %}{%- for m in messages %}" + LINE + "{{- opening }}{%- endfor %}"
    template, memory = built(around), RenderMemory()
    marked = template.mark({"role": "user", "content": "<|im_end|>"})["content"]
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    for opening in (marked, type(marked)("<|im_end|>")):
        values = {"messages": messages, "mine": opening}
        assert template.resumable.render(values, memory) == template.template.render(values)


def test_a_copy_of_a_context_renders_on_its_own() -> None:
    template = built("{%- for m in messages %}" + LINE + "{{- '<|im_end|>' }}{%- endfor %}")
    context = Context(template)
    context.start([{"role": "user", "content": "Q"}])
    end = template.token_id("<|im_end|>") or 0
    twin = context.fork()
    twin.extend([7, end], [{"role": "user", "content": "of the copy"}])
    context.extend([7, end], [{"role": "user", "content": "of the first"}])
    assert "of the copy" not in context._text
    assert "of the first" not in twin._text


def test_a_template_that_differs_in_parts_is_rendered_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None is known: here, the list of what a pass may read lacks a part."""
    monkeypatch.setattr(resumed, "_CHECKED", 32)
    monkeypatch.setattr(resumed, "_all_same", lambda old, new: True)
    template = built(
        "{%- set count = messages | length %}{%- for m in messages %}" + LINE + "{{- count }}{%- endfor %}"
    )
    memory, messages = RenderMemory(), [{"role": "user", "content": "m"}]
    for _ in range(5):
        assert parts(template, messages, memory) == whole(template, messages)
        messages = [*messages, {"role": "user", "content": "m"}]
    assert not template.resumable.is_resumable
    assert "rendered whole" in caplog.text


def test_a_fault_of_a_template_is_the_same_in_parts() -> None:
    template = built(
        "{%- for m in messages %}{%- if m.role == 'bad' %}{{- raise_exception('no') }}{%- endif %}{%- endfor %}"
    )
    memory = RenderMemory()
    parts(template, [{"role": "user", "content": "Q"}], memory)
    with pytest.raises(Exception, match=r"roles \[user, bad\]: no"):
        parts(template, [{"role": "user", "content": "Q"}, {"role": "bad", "content": ""}], memory)
