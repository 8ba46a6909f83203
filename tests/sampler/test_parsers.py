"""Tool calls from model text: every text yields a value, in linear time. Round trips with each family's own
writing are in `test_template_families.py`, time and fuzz in `test_parsers_fuzz.py`."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.core.parsers import MAX_CALLS, PARSERS, get_parser
from shared.errors import ConfigError

parse_hermes = get_parser("hermes")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "s": {"type": "string"},
                    "n": {"type": "integer"},
                    "maybe": {"type": ["string", "null"]},
                    "either": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                    "o": {"type": "object"},
                    "kind": {"enum": ["1", "2"]},
                },
            },
        },
    }
]


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def calls_of(parser: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    reply = get_parser(parser)(text, TOOLS)
    assert reply.errors == []
    return [(c.name, dict(c.arguments)) for c in reply.tool_calls]


def test_text_and_several_calls_are_separated() -> None:
    reply = parse_hermes(f"I look.\n{call('a', {'x': {'y': [1, {'z': '}'}]}})}\nand\n{call('b', {})}", ())
    assert reply.content == "I look.\n\nand"
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("a", {"x": {"y": [1, {"z": "}"}]}}), ("b", {})]
    assert reply.errors == []


@pytest.mark.parametrize("parser", PARSERS)
def test_a_reply_without_calls_is_all_content(parser: str) -> None:
    reply = get_parser(parser)("It is 5. {not json} <tool call> [1] [a](b) f(x)", ())
    assert (reply.content, reply.tool_calls, reply.errors) == (
        "It is 5. {not json} <tool call> [1] [a](b) f(x)",
        [],
        [],
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"name": "a", "arguments": {}', "Expecting ',' delimiter at character"),
        ('{"name": "a"} and more', "Extra data at character 14"),
        ("", "Expecting value"),
        ("[1]", "is list, not an object"),
        ('"a"', "is str, not an object"),
        ('{"arguments": {}}', 'has no "name"'),
        ('{"name": 5, "arguments": {}}', 'has no "name"'),
        ('{"name": "a", "arguments": "x"}', 'has "arguments" that are str'),
        ('{"name": "a", "arguments": null}', 'has "arguments" that are NoneType'),
        ('{"name": "a", "arguments": {"x": NaN}}', "NaN is no JSON"),
        ('{"name": "a", "arguments": {"x": 1e999}}', "inf is no JSON"),
        ('{"name": "a", "arguments": {"x": "\\ud83d"}}', "half of a surrogate pair"),
        ('{"name": "\\ud83d", "arguments": {}}', "half of a surrogate pair"),
        ('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}", "more than 64 bits"),
        ('{"name": "a", "arguments": {"x": 9223372036854775808}}', "more than 64 bits"),
        ('{"name": "a", "arguments": {"\\u0000": 1}}', "not allowed"),
        ("[" * 100_000, "levels deep"),
        ('{"name": "a", "arguments": {"x": ' + "[" * 70 + "]" * 70 + "}}", "levels deep"),
    ],
)
def test_a_malformed_call_becomes_an_error_for_the_model_and_the_others_are_kept(body: str, words: str) -> None:
    reply = parse_hermes(f"{call('before', {})}<tool_call>{body}</tool_call>{call('after', {})} end", ())
    assert [c.name for c in reply.tool_calls] == ["before", "after"]
    assert len(reply.errors) == 1
    assert reply.errors[0].startswith("tool call 2 ")
    assert words in reply.errors[0]
    assert reply.content == "end"


@pytest.mark.parametrize(
    ("parser", "text", "words"),
    [
        ("hermes", 'Wait <tool_call>{"name": "a", "arguments": {}}', "is not closed"),
        ("qwen3_coder", "Wait <tool_call>\n<function=f>\n<parameter=s>\n5", "has a parameter 's' that is not closed"),
        ("qwen3_coder", "Wait <tool_call>\nf(5)\n</tool_call>", "does not begin with <function=NAME>"),
        ("qwen3_coder", "Wait <function=f> x </function>", "is not closed by </function>"),
        ("qwen3_coder", "Wait <tool_call><function=></function></tool_call>", 'has no "name"'),
        ("mistral", 'Wait [TOOL_CALLS][{"name": "f", "arguments": {}', "is not valid JSON"),
        ("mistral", "Wait [TOOL_CALLS][]", "is an empty list"),
        ("mistral", "Wait [TOOL_CALLS]f[ARGS]{5}", "is not valid JSON"),
        ("llama3", '{"name": "f", "parameters": {', "is not valid JSON"),
        ("llama3", '{"name": "f", "parameters": []}', 'has "arguments" that are list'),
        ("llama3", "Wait <|python_tag|>print(5)", "is not a JSON object"),
        ("llama3", "Wait <|python_tag|>", "is empty"),
        ("deepseekv3", "Wait <｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", "is missing between the tokens"),
        ("deepseekv3", "Wait <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f{}", "has no <｜tool▁sep｜>"),
        ("deepseekv3", "Wait <｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "is not closed"),
        ("pythonic", "[f(x=5]", "no ')'"),
        ("pythonic", "[f(5)]", "no name of an argument"),
        ("pythonic", "[f(x=y)]", "'y' is no value"),
        ("pythonic", "[f(x='a", "a text that is not closed"),
        ("kimi_k2", "Wait <|tool_calls_section_begin|> <|tool_calls_section_end|>", "is missing between the tokens"),
        ("kimi_k2", "Wait <|tool_call_begin|>functions.f:0{}<|tool_call_end|>", "has no <|tool_call_argument_begin|>"),
        ("kimi_k2", "Wait <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{", "is not closed"),
        ("glm45", "Wait <tool_call>f\n<arg_key>s</arg_key>\n</tool_call>", "has a key or a value that is not closed"),
        ("glm45", "Wait <tool_call>f\nhello</tool_call>", "has text where a key"),
        ("glm45", "Wait <tool_call>f\n", "is not closed"),
        ("glm45", "Wait <tool_call></tool_call>", 'has no "name"'),
        ("minicpm", "Wait <|tool_call_start|>\n```python\nf(x=", "is not closed"),
        ("minicpm", "Wait <|tool_call_start|>\n```python\n```\n<|tool_call_end|>", "is missing between the two tokens"),
        ("minicpm", "Wait <|tool_call_start|>\n```python\nx = 5\n```\n<|tool_call_end|>", "no '('"),
    ],
)
def test_every_family_reports_the_error_and_the_expected_format(parser: str, text: str, words: str) -> None:
    reply = get_parser(parser)(text, TOOLS)
    assert reply.tool_calls == []
    assert len(reply.errors) == 1
    assert reply.errors[0].startswith("tool call 1 ")
    assert words in reply.errors[0]
    assert "; expected " in reply.errors[0]
    assert reply.content == ("Wait" if text.startswith("Wait") else "")


def test_a_call_after_a_malformed_one_is_parsed() -> None:
    texts = {
        "hermes": '<tool_call>{</tool_call><tool_call>{"name": "f"}</tool_call>',
        "qwen3_coder": "<tool_call><function=f><parameter=s></tool_call><tool_call><function=f></function></tool_call>",
        "mistral": '[TOOL_CALLS][{][TOOL_CALLS][{"name": "f", "arguments": {}}]',
        "deepseekv3": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "pythonic": "[f(5)]\n[f()]",
        "kimi_k2": "<|tool_call_begin|>f<|tool_call_end|>"
        "<|tool_call_begin|>f:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "glm45": "<tool_call>f hm</tool_call><tool_call>f</tool_call>",
        "minicpm": "<|tool_call_start|>f(<|tool_call_end|><|tool_call_start|>f()<|tool_call_end|>",
    }
    for parser, text in texts.items():
        reply = get_parser(parser)(text, TOOLS)
        assert [c.name for c in reply.tool_calls] == ["f"], parser
        assert len(reply.errors) == 1, parser


def test_an_unclosed_value_does_not_consume_the_next_call() -> None:
    coder = "<tool_call><function=f><parameter=s>5{}</function></tool_call>"
    reply = get_parser("qwen3_coder")(coder.format("") + coder.format("</parameter>"), TOOLS)
    assert ([c.arguments for c in reply.tool_calls], len(reply.errors)) == ([{"s": "5"}], 1)
    glm = "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>5{}</tool_call>"
    reply = get_parser("glm45")(glm.format("") + glm.format("</arg_value>"), TOOLS)
    assert ([c.arguments for c in reply.tool_calls], len(reply.errors)) == ([{"s": "5"}], 1)


def test_a_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    reply = parse_hermes(call("say", {"text": "a </tool_call> b"}) + " done", ())
    assert reply.tool_calls[0].arguments == {"text": "a </tool_call> b"}
    assert reply.content == "done"
    text = '<|tool_call_start|>\n```python\nf(s="a\\n```\\n<|tool_call_end|>")\n```\n<|tool_call_end|>'
    assert calls_of("minicpm", text) == [("f", {"s": "a\n```\n<|tool_call_end|>"})]


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm45"])
def test_bare_arguments_get_their_types_from_the_schema(parser: str) -> None:
    def written(name: str, **texts: str) -> str:
        if parser == "glm45":
            pairs = [f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in texts.items()]
            return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"
        pairs = [f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in texts.items()]
        return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"

    texts = {"s": "5", "n": "5", "maybe": "null", "either": "5", "o": '{"a": [1]}', "kind": "1", "new": "true"}
    wanted = {"s": "5", "n": 5, "maybe": None, "either": "5", "o": {"a": [1]}, "kind": "1", "new": True}
    assert calls_of(parser, written("f", **texts)) == [("f", wanted)]
    assert calls_of(parser, written("f", n="many", o="{", s='"x"')) == [("f", {"n": "many", "o": "{", "s": '"x"'})]
    assert calls_of(parser, written("unknown", a="5", b="five", c="False")) == [
        ("unknown", {"a": 5, "b": "five", "c": False})
    ]


def test_a_familys_other_formats_are_parsed() -> None:
    one = [("f", {"s": "A"})]
    assert calls_of("mistral", '[TOOL_CALLS]f{"s": "A"}') == one
    assert (
        calls_of("mistral", '[TOOL_CALLS]f[CALL_ID]aB3dE6gH9[ARGS]{"s": "A"}[TOOL_CALLS]f[ARGS]{"s": "A"}') == one * 2
    )
    object_of_a = '{"name": "f", "parameters": {"s": "A"}}'
    assert calls_of("llama3", f"<|python_tag|>{object_of_a}; {object_of_a}") == one * 2
    assert calls_of("llama3", '{"type": "function", "name": "f", "parameters": {"s": "A"}}') == one
    fenced = 'function<｜tool▁sep｜>f\n```json\n{"s": "A"}\n```'
    assert calls_of("deepseekv3", f"<｜tool▁call▁begin｜>{fenced}<｜tool▁call▁end｜>") == one
    assert calls_of("pythonic", 'I look.\n[f(s=\'A\'), f(s="""A""",),]') == one * 2
    assert calls_of("pythonic", "[f(a=-1.5, b=[1, (2,)], c={'k': None}, d='\\x41\\u00e9' \"!\")]") == [
        ("f", {"a": -1.5, "b": [1, [2]], "c": {"k": None}, "d": "Aé!"})
    ]
    assert calls_of("minicpm", '<|tool_call_start|>\nf(s="A")\nf()\n<|tool_call_end|>') == [*one, ("f", {})]
    kimi = "<|tool_call_begin|>a.b:c:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert calls_of("kimi_k2", kimi) == [("a.b:c", {})]


def test_the_models_own_call_ids_are_kept_if_templates_accept_them() -> None:
    kimi = "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert get_parser("kimi_k2")(kimi, ()).tool_calls[0].id == "functions.f:3"
    mistral = '[TOOL_CALLS][{"name": "f", "id": "aB3dE6gH9"}, {"name": "f", "id": "short"}, {"name": "f", "id": 5}]'
    assert [c.id for c in get_parser("mistral")(mistral, ()).tool_calls] == ["aB3dE6gH9", "", ""]


def test_a_json_answer_is_not_a_call() -> None:
    assert get_parser("llama3")('{"answer": 5}', ()).content == '{"answer": 5}'


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "deepseekv3", "kimi_k2", "glm45", "mistral"])
def test_reasoning_is_separated_and_never_searched_for_calls(parser: str) -> None:
    parse, opening = get_parser(parser), {"deepseekv3": "<｜tool▁call▁begin｜>", "kimi_k2": "<|tool_call_begin|>"}
    begun = opening.get(parser, "[TOOL_CALLS]" if parser == "mistral" else "<tool_call>")
    reply = parse(f"<think>\nMaybe {begun}?\n</think>\nNo.", ())
    assert (reply.tool_calls, reply.errors, reply.content) == ([], [], "No.")
    assert "Maybe" in reply.reasoning
    assert parse(f"<think> {begun}", ()).errors == []
    assert parse(f"still {begun}</think>ok", ()).content == "ok"


@pytest.mark.parametrize("parser", PARSERS)
def test_no_more_than_a_bounded_number_of_calls_is_read(parser: str) -> None:
    one = {
        "qwen3_coder": "<tool_call><function=f></function></tool_call>",
        "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
        "llama3": '{"name": "f", "parameters": {}};',
        "deepseekv3": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "pythonic": "[f(), f()]\n",
        "kimi_k2": "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "glm45": "<tool_call>f</tool_call>",
        "minicpm": "<|tool_call_start|>f()<|tool_call_end|>",
    }.get(parser, call("f", {}))
    reply = get_parser(parser)(one * 100, ())
    assert len(reply.tool_calls) == MAX_CALLS
    assert reply.errors == [f"more than {MAX_CALLS} tool calls in one reply; the rest were not read"]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(texts.filter(bool), st.dictionaries(texts, json_values, max_size=3)), max_size=4))
@settings(deadline=None)
def test_parsing_inverts_writing(calls: list[tuple[str, dict[str, Any]]]) -> None:
    text = "\n".join(call(name, arguments) for name, arguments in calls)
    if text.count("</tool_call>") != len(calls) or "</think>" in text:
        return
    reply = parse_hermes(text, ())
    assert [(c.name, c.arguments) for c in reply.tool_calls] == calls
    assert reply.errors == []


@given(st.dictionaries(st.sampled_from("abc"), json_values, max_size=3), st.booleans())
@settings(deadline=None)
def test_python_and_json_literals_are_both_read(arguments: dict[str, Any], as_json: bool) -> None:
    def literal(value: Any) -> str:
        return json.dumps(value) if as_json else repr(value)

    text = f"[f({', '.join(f'{k}={literal(v)}' for k, v in arguments.items())})]"
    reply = get_parser("pythonic")(text, ())
    assert reply.errors == []
    assert reply.tool_calls[0].arguments == arguments


def test_an_unknown_parser_names_the_known_ones() -> None:
    assert get_parser("qwen25") is get_parser("qwen") is parse_hermes
    with pytest.raises(ConfigError, match="expected one of deepseekv3, glm45, hermes"):
        get_parser("herms")
