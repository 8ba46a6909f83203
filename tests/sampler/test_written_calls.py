"""A call has exactly the arguments that the model wrote, or is an error that the model reads: in every family. An answer that
looks like a call is an answer."""

import json
import time
from typing import Any

import pytest

from sampler.core.parsers import get_parser
from sampler.core.parsers.reply import split_reasoning
from tests.sampler.call_forms import FORMS, Form

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": {}}}}}
]
WITH_NAMES = {
    "hermes": "<tool_call>\n{}\n</tool_call>",
    "mistral": "[TOOL_CALLS][{}]",
    "llama3": "{}",
    "llama3 tagged": "<|python_tag|>{}",
}
BODIES = {
    "deepseekv3": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "mistral": "[TOOL_CALLS]f[ARGS]{}",
    **{
        family: form.replace("{}", '{"name": "f", "arguments": {}}')
        for family, form in WITH_NAMES.items()
        if family != "mistral"
    },
}


def read(family: str, text: str) -> tuple[list[tuple[str, dict[str, Any]]], list[str], str]:
    reply = get_parser(family.split()[0])(text, TOOLS)
    return [(call.name, dict(call.arguments)) for call in reply.tool_calls], reply.errors, reply.content


def filled(form: str, text: str) -> str:
    return form.replace("{}", text)


@pytest.mark.parametrize("family", WITH_NAMES)
@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "parameters": {"b": 1}}',
        '{"name": "f", "arguments": {"b": 1}}',
        '{"parameters": {"b": 1}, "name": "f"}',
        '{"name": "f", "arguments": "{\\"b\\": 1}"}',
        '{"type": "function", "name": "f", "arguments": {"b": 1}}',
        '{"type": "function", "function": {"name": "f", "arguments": "{\\"b\\": 1}"}}',
    ],
)
def test_arguments_are_read_under_each_name_that_models_give_them(family: str, body: str) -> None:
    assert read(family, filled(WITH_NAMES[family], body)) == ([("f", {"b": 1})], [], "")


@pytest.mark.parametrize("family", WITH_NAMES)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"name": "f", "arguments": {"b": 1}, "parameters": {"b": 2}}', 'has both "arguments" and "parameters"'),
        ('{"name": "f", "arguments": {}, "b": 1}', "has 'b' beside \"name\""),
        ('{"name": "f", "args": {"b": 1}, "parameters": {}}', "has 'args' beside \"name\""),
        ('{"name": "f", "arguments": "b = 1"}', 'has "arguments" that are str'),
        ('{"name": "f", "parameters": [1]}', 'has "arguments" that are list'),
        ('{"name": "f", "arguments": {"b": 1, "b": 2}}', "has the name 'b' more than once"),
        ('{"name": "f", "arguments": {"b": [{"é": 1, "é": 1}]}}', "more than once"),
        ('{"name": "f", "arguments": {"b": 3.14159265358979323846}}', "more digits than a 64-bit float"),
        ('{"name": "f", "arguments": {"b": 18446744073709551615}}', "more than 64 bits"),
        ('{"name": "f", "arguments": {"b": 1e-999999999999999999999}}', "more digits than a 64-bit float"),
    ],
)
def test_what_would_be_called_with_other_arguments_is_an_error(family: str, body: str, words: str) -> None:
    calls, errors, content = read(family, filled(WITH_NAMES[family], body))
    assert (calls, content, len(errors)) == ([], "", 1)
    assert words in errors[0]
    assert "; expected " in errors[0]


@pytest.mark.parametrize("family", BODIES)
def test_arguments_that_are_a_text_with_an_object_are_that_object(family: str) -> None:
    text = json.dumps({"b": [1, "x"]})
    if family != "mistral":
        assert read(family, filled(BODIES[family], json.dumps(text))) == ([("f", {"b": [1, "x"]})], [], "")
    assert read(family, filled(BODIES[family], text)) == ([("f", {"b": [1, "x"]})], [], "")


@pytest.mark.parametrize("family", BODIES)
def test_a_name_that_an_object_has_twice_is_an_error_in_every_family(family: str) -> None:
    calls, errors, _ = read(family, filled(BODIES[family], '{"b": 1, "b": 2}'))
    assert calls == []
    assert "more than once" in errors[0]


def test_a_parameter_that_is_not_closed_before_the_next_is_an_error() -> None:
    calls, errors, _ = read(
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>",
    )
    assert (calls, len(errors)) == ([], 1)
    assert "has a parameter 'a' that is not closed by </parameter> before <parameter=b>" in errors[0]
    glm = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1{}\n<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
    assert read("glm45", glm.replace("{}", "</arg_value>"))[0] == [("f", {"a": "1", "b": 2})]
    calls, errors, _ = read("glm45", glm.replace("{}", ""))
    assert (calls, len(errors)) == ([], 1)
    calls, errors, _ = read(
        "glm45", "<tool_call>f\n<arg_key>a\n<arg_value>1</arg_value><arg_key>b</arg_key></tool_call>"
    )
    assert (calls, len(errors)) == ([], 1)


@pytest.mark.parametrize(
    ("family", "text", "words"),
    [
        ("qwen3_coder", "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>", "'a' twice"),
        ("qwen3_coder", "<function=f><parameter=>1</parameter></function>", "without a name"),
        ("glm45", "<tool_call>f" + "<arg_key>a</arg_key><arg_value>1</arg_value>" * 2 + "</tool_call>", "'a' twice"),
        ("glm45", "<tool_call>f<arg_key> </arg_key><arg_value>1</arg_value></tool_call>", "an empty key"),
        ("pythonic", "[f(b=1, b=2)]", "the argument b a second time"),
        ("pythonic", "[f(b={'x': 1, 'x': 2})]", "the name 'x' a second time"),
        ("pythonic", "[f(b=02134)]", "a number that begins with 0"),
        ("pythonic", "[f(b=0.1000000000000000055)]", "more digits than a 64-bit float"),
        ("pythonic", "[f(b=1e999)]", "inf is no JSON"),
        ("minicpm", "<|tool_call_start|>f(b=1, b=2)<|tool_call_end|>", "the argument b a second time"),
    ],
)
def test_an_argument_that_is_written_twice_or_would_be_changed_is_an_error(family: str, text: str, words: str) -> None:
    calls, errors, _ = read(family, text)
    assert (calls, len(errors)) == ([], 1)
    assert words in errors[0]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("llama3", '{"name": "Goethe"}'),
        ("llama3", '{"name": "Goethe", "born": 1749}'),
        ("llama3", '{"name": "Goethe", "type": "poet", "id": 5}'),
        ("llama3", '{"name": "Goethe", born: 1749}'),
        ("llama3", '{"name": "Goethe", "of": {"parameters": {}, "arguments": {}}}'),
        ("llama3", '{"function": {"name": "sin"}}'),
        ("llama3", '{"parameters": {"a": 1}}'),
        ("pythonic", "[sqrt(x) for x in range(3)]"),
        ("pythonic", "So:\n[max(1, 2), 3]\nis it."),
    ],
)
def test_an_answer_in_the_form_of_a_call_stays_an_answer(family: str, text: str) -> None:
    assert read(family, text) == ([], [], text)


def test_a_list_with_the_name_of_a_tool_is_a_call_also_where_it_is_malformed() -> None:
    assert len(read("pythonic", "[f(5)]")[1]) == 1
    assert read("pythonic", "[unknown(x=5)]")[0] == [("unknown", {"x": 5})]
    assert read("pythonic", "[sqrt(x) for x in y]\n[f(b=5)]") == ([("f", {"b": 5})], [], "[sqrt(x) for x in y]")


CODER = "<tool_call><function=f><parameter=b>1</parameter></function></tool_call>"
CUT_OFF = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>', "</tool_call>"),
    ("qwen3_coder", CODER, "</parameter></function></tool_call>"),
    ("glm45", "<tool_call>f<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>", "</tool_call>"),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"b": 1}}]', "}}]"),
    ("deepseekv3", filled(BODIES["deepseekv3"], '{"b": 1}'), "<｜tool▁call▁end｜>"),
    ("kimi_k2", filled(BODIES["kimi_k2"], '{"b": 1}'), "<|tool_call_end|>"),
    ("pythonic", "[f(b=1)]", ")]"),
    ("pythonic", "[f(b=1)]", "]"),
]


@pytest.mark.parametrize(("family", "call", "end"), CUT_OFF)
def test_a_call_behind_one_that_is_not_closed_is_read(family: str, call: str, end: str) -> None:
    calls, errors, _ = read(family, f"{call.removesuffix(end)}\n{call}")
    assert (calls[-1:], len(errors)) == ([("f", {"b": 1})], 1)


THINKERS = ["hermes", "qwen3_coder", "glm45", "deepseekv3", "deepseekv31", "kimi_k2", "minicpm"]


@pytest.mark.parametrize("form", [form for form in FORMS if form.family in THINKERS], ids=lambda form: form.family)
def test_tags_of_reasoning_in_a_call_are_its_text_and_calls_in_any_reasoning_are_none(form: Form) -> None:
    one, other = form.written(("f", {"a": "1 </think> 2"})), form.written(("f", {"a": "3"}))
    both = [("f", {"a": "1 </think> 2"}), ("f", {"a": "3"})]
    assert read(form.parser, one) == (both[:1], [], "")
    assert read(form.parser, f"I call. {other}\n<think>so</think>") == (both[1:], [], "I call.")
    assert read(form.parser, f"<think>a</think>x<think>maybe {other}?</think>y") == ([], [], "xy")
    assert read(form.parser, f"<think>a</think>{one}<think>b</think>{other}") == (both, [], "")
    assert read(form.parser, f"hm, {other}?</think>{one}") == (both[:1], [], "")
    assert read(form.parser, f"hm, {other[:12]}?</think>{other}") == (both[1:], [], "")


def test_the_time_of_reading_reasoning_is_linear() -> None:
    tags = ("<tool_call>", "</tool_call>")
    for text in ("<tool_call></tool_call>", "<think></think>", "<tool_call></think>", "</think>", "<tool_call><think>"):

        def seconds(count: int) -> float:
            begun = time.process_time()
            split_reasoning(text * count + "</think></tool_call>", calls=tags)  # noqa: B023 - called at once
            return time.process_time() - begun

        few, many = (min(seconds(count) for _ in range(3)) for count in (2_000, 20_000))  # one may meet the collector
        assert many < 40 * few + 0.5, text
