"""Tool calls out of model text: whatever the text, a value comes back, and in linear time."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.parsers import get_parser, parse_hermes
from shared.errors import ConfigError


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def test_text_and_several_calls_are_told_apart() -> None:
    reply = parse_hermes(f"I look.\n{call('a', {'x': {'y': [1, {'z': '}'}]}})}\nand\n{call('b', {})}")
    assert reply.content == "I look.\n\nand"
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("a", {"x": {"y": [1, {"z": "}"}]}}), ("b", {})]
    assert reply.errors == []


def test_a_reply_without_calls_is_all_content() -> None:
    reply = parse_hermes("It is 5. {not json} <tool call>")
    assert (reply.content, reply.tool_calls, reply.errors) == ("It is 5. {not json} <tool call>", [], [])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"name": "a", "arguments": {}', "Expecting ',' delimiter at character"),
        ("", "Expecting value"),
        ("[1]", "is list, not an object"),
        ('"a"', "is str, not an object"),
        ('{"arguments": {}}', 'has no "name"'),
        ('{"name": 5, "arguments": {}}', 'has no "name"'),
        ('{"name": "a", "arguments": "x"}', 'has "arguments" that are str'),
        ('{"name": "a", "arguments": null}', 'has "arguments" that are NoneType'),
        ('{"name": "a", "arguments": {"x": NaN}}', "NaN is no JSON"),
        ('{"name": "a", "arguments": {"x": "\\ud83d"}}', "half of a surrogate pair"),
        ('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}", "more than 64 bits"),
        ('{"name": "a", "arguments": {"x": 9223372036854775808}}', "more than 64 bits"),
        ('{"name": "a", "arguments": {"\\u0000": 1}}', "not allowed"),
        ("[" * 100_000, "levels deep"),
        ('{"name": "a", "arguments": {"x": ' + "[" * 70 + "]" * 70 + "}}", "levels deep"),
    ],
)
def test_a_malformed_call_becomes_a_text_for_the_model_and_the_others_stand(body: str, words: str) -> None:
    reply = parse_hermes(f"{call('before', {})}<tool_call>{body}</tool_call>{call('after', {})} end")
    assert [c.name for c in reply.tool_calls] == ["before", "after"]
    assert len(reply.errors) == 1
    assert reply.errors[0].startswith("tool call 2 ")
    assert words in reply.errors[0]
    assert reply.content == "end"


def test_an_unclosed_call_is_an_error() -> None:
    reply = parse_hermes('Wait <tool_call>{"name": "a", "arguments": {}}')
    assert reply.tool_calls == []
    assert reply.content == "Wait"
    assert "tool call 1 is not closed" in reply.errors[0]


def test_a_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    reply = parse_hermes(call("say", {"text": "a </tool_call> b"}) + " done")
    assert reply.tool_calls[0].arguments == {"text": "a </tool_call> b"}
    assert reply.content == "done"


def test_reasoning_is_set_apart_and_never_searched_for_calls() -> None:
    reply = parse_hermes(f"<think>\nMaybe {call('no', {})}?\n</think>\n{call('yes', {})}")
    assert [c.name for c in reply.tool_calls] == ["yes"]
    assert "Maybe" in reply.reasoning
    assert parse_hermes(f"<think> {call('no', {})}").tool_calls == []
    assert parse_hermes(f"still {call('no', {})}</think>ok").content == "ok"


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(texts.filter(bool), st.dictionaries(texts, json_values, max_size=3)), max_size=4))
@settings(deadline=None)
def test_what_was_written_is_read(calls: list[tuple[str, dict[str, Any]]]) -> None:
    text = "\n".join(call(name, arguments) for name, arguments in calls)
    if text.count("</tool_call>") != len(calls) or "</think>" in text:
        return
    reply = parse_hermes(text)
    assert [(c.name, c.arguments) for c in reply.tool_calls] == calls
    assert reply.errors == []


pieces = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        '"',
        "\\",
        "\n",
        '{"name": "a", "arguments": {}}',
        "<think>",
        "</think>",
        "é",
        "😀",
    ]
)


@given(st.lists(pieces | st.text(max_size=5), max_size=40).map("".join))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_parser_fail(text: str) -> None:
    reply = parse_hermes(text)
    assert all(isinstance(c.arguments, dict) for c in reply.tool_calls)


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "<tool_call>{",
        "<tool_call></tool_call>",
        "</tool_call>",
        '<tool_call>{"a": "',
        "<tool_call>[",
        "\n",
    ],
)
def test_time_is_linear_in_the_length(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    began = time.process_time()
    parse_hermes(text)
    parse_hermes(text + "</tool_call>")
    assert time.process_time() - began < 2


def test_an_unknown_parser_names_the_known_ones() -> None:
    assert get_parser("hermes") is parse_hermes
    with pytest.raises(ConfigError, match="expected one of hermes"):
        get_parser("herms")
