"""How the models of each family write calls, in the pieces that go wrong: names, arguments, tags.

`texts()` gives every text of the comparison with other engines' parsers (`tests/sampler/parser_table.py`).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Arguments = dict[str, Any]
Call = tuple[str, Arguments]


@dataclass(frozen=True)
class Form:
    """`one`: a call of a name with arguments as they are written; `wrap`: several of them; `body`: arguments, well written.
    `start`, `end`: the tags around; `kind`: of the arguments, named (`"name"` beside them), json, bare or python."""

    family: str
    parser: str
    kind: str
    start: str
    end: str
    one: Callable[[str, str], str]
    wrap: Callable[[Sequence[str]], str]
    body: Callable[[Arguments], str]

    def call(self, name: str, body: str) -> str:
        return self.wrap([self.one(name, body)])

    def written(self, *calls: Call) -> str:
        return self.wrap([self.one(name, self.body(arguments)) for name, arguments in calls])


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def bare(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def _coder(arguments: Arguments) -> str:
    return "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())


def _glm(arguments: Arguments) -> str:
    return "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n" for key, value in arguments.items()
    )


def _python(arguments: Arguments) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def _joined(before: str, between: str, after: str, ones: Sequence[str]) -> str:
    return before + between.join(ones) + after


_TAG, _END_TAG = "<tool_call>", "</tool_call>"
_DEEP, _END_DEEP = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEP_CALL, _DEEP_SEP, _END_DEEP_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_KIMI, _END_KIMI = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

FORMS = (
    Form(
        "hermes", "hermes", "named", _TAG, _END_TAG,
        lambda name, body: f'{_TAG}\n{{"name": "{name}", "arguments": {body}}}\n{_END_TAG}',
        "\n".join, as_json,
    ),
    Form(
        "qwen3_coder", "qwen3_coder", "bare", _TAG, _END_TAG,
        lambda name, body: f"{_TAG}\n<function={name}>\n{body}</function>\n{_END_TAG}",
        "\n".join, _coder,
    ),
    Form(
        "glm45", "glm45", "bare", _TAG, _END_TAG,
        lambda name, body: f"{_TAG}{name}\n{body}{_END_TAG}",
        "\n".join, _glm,
    ),
    Form(
        "llama3", "llama3", "named", "<|python_tag|>", "",
        lambda name, body: f'{{"name": "{name}", "parameters": {body}}}',
        partial(_joined, "<|python_tag|>", "; ", ""), as_json,
    ),
    Form(
        "llama3, no tag", "llama3", "named", "", "",
        lambda name, body: f'{{"name": "{name}", "parameters": {body}}}',
        "; ".join, as_json,
    ),
    Form(
        "mistral", "mistral", "named", "[TOOL_CALLS]", "",
        lambda name, body: f'{{"name": "{name}", "arguments": {body}}}',
        partial(_joined, "[TOOL_CALLS] [", ", ", "]"), as_json,
    ),
    Form(
        "mistral, named", "mistral", "json", "[TOOL_CALLS]", "",
        lambda name, body: f"[TOOL_CALLS]{name}[ARGS]{body}",
        "".join, as_json,
    ),
    Form(
        "deepseekv3", "deepseekv3", "json", _DEEP, _END_DEEP,
        lambda name, body: f"{_DEEP_CALL}function{_DEEP_SEP}{name}\n```json\n{body}\n```{_END_DEEP_CALL}",
        partial(_joined, _DEEP, "\n", _END_DEEP), as_json,
    ),
    Form(
        "deepseekv31", "deepseekv3", "json", _DEEP, _END_DEEP,
        lambda name, body: f"{_DEEP_CALL}{name}{_DEEP_SEP}{body}{_END_DEEP_CALL}",
        partial(_joined, _DEEP, "", _END_DEEP), as_json,
    ),
    Form(
        "kimi_k2", "kimi_k2", "json", _KIMI, _END_KIMI,
        lambda name, body: f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{body}<|tool_call_end|>",
        partial(_joined, _KIMI, "", _END_KIMI), as_json,
    ),
    Form(
        "pythonic", "pythonic", "python", "[", "]",
        lambda name, body: f"{name}({body})",
        partial(_joined, "[", ", ", "]"), _python,
    ),
    Form(
        "minicpm", "minicpm", "python", "<|tool_call_start|>", "<|tool_call_end|>",
        lambda name, body: f"{name}({body})",
        partial(_joined, "<|tool_call_start|>\n```python\n", "\n", "\n```\n<|tool_call_end|>"), _python,
    ),
)  # fmt: skip

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "flag": {"type": "boolean"},
                    "maybe": {"type": ["string", "null"]},
                    "rows": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
                    "filter": {"type": "object", "additionalProperties": {"type": "string"}},
                    "year": {"$ref": "#/$defs/Year"},
                    "perhaps": {"anyOf": [{"$ref": "#/$defs/Year"}, {"type": "null"}]},
                    "all": {"allOf": [{"$ref": "#/$defs/Year"}]},
                    "fixed": {"const": "2024"},
                    "choice": {"enum": ["1", "2"]},
                    "either": {"oneOf": [{"type": "integer"}, {"type": "string", "enum": ["auto"]}]},
                },
                "$defs": {"Year": {"type": "string", "enum": ["2023", "2024"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]


@dataclass(frozen=True)
class Text:
    """`meant`: the calls that the model evidently meant; None: that cannot be known, or nothing that can be sent."""

    kind: str
    form: Form
    text: str
    meant: list[Call] | None

    @property
    def name(self) -> str:
        return f"{self.form.family}: {self.kind}"


WELL_WRITTEN: dict[str, list[Call]] = {
    "one call": [("f", {"city": "Paris"})],
    "two calls": [("f", {"city": "Paris"}), ("clock", {})],
    "no arguments": [("clock", {})],
    "quotes and braces in a text": [("f", {"city": "a \"b\" {c} [d] 'e' \\ <f> & ```"})],
    "other scripts and symbols": [("f", {"city": "Zürich 北京 🙂 \u202e\u200b"})],
    "line breaks in a text": [("f", {"city": "one\n\n  two\n"})],
    "nested objects and lists": [("f", {"filter": {"a": "1", "b": "x"}, "rows": [["5", "a"], []]})],
    "a text of digits": [("f", {"city": "2024"})],
    "a text like true": [("f", {"city": "true"})],
    "the text null": [("f", {"city": "null"})],
    "a text that is JSON": [("f", {"city": '{"a": 1}'})],
    "numbers and truth values": [("f", {"count": -3, "ratio": 2.5, "flag": True})],
    "null where it is allowed": [("f", {"maybe": None})],
    "digits behind $ref": [("f", {"year": "2024"})],
    "digits behind anyOf of $ref and null": [("f", {"perhaps": "2024"})],
    "digits behind allOf": [("f", {"all": "2024"})],
    "digits of a const": [("f", {"fixed": "2024"})],
    "digits of an enum": [("f", {"choice": "1"})],
    "a number of oneOf": [("f", {"either": 7})],
    "a tool that does not exist": [("g", {"city": "Paris"})],
    "a parameter that does not exist": [("f", {"town": "Paris"})],
}


def texts() -> Iterator[Text]:
    for form in FORMS:
        for kind, calls in WELL_WRITTEN.items():
            yield Text(kind, form, form.written(*calls), calls)
        yield from _around(form)
        yield from _broken(form)
        yield from {"named": _named, "json": _json, "bare": _bare, "python": _literal}[form.kind](form)


PARIS: Call = ("f", {"city": "Paris"})


def _around(form: Form) -> Iterator[Text]:
    one = form.written(PARIS)
    if form.start:
        yield Text("text before the call", form, f"I look it up.\n\n{one}", [PARIS])
    yield Text("text after the call", form, f"{one}\nDone.", [PARIS])
    yield Text("a call in the reasoning", form, f"<think>\n{one}\n</think>\nParis.", [])
    yield Text("no call", form, "The capital is Paris.", [])
    if form.start:
        city = {
            "city": f"a {form.end if len(form.end) > 1 else form.start if len(form.start) > 1 else '<|python_end|>'} b"
        }
        yield Text(
            "the end tag in a text", form, form.written(("f", city)), None if form.kind == "bare" else [("f", city)]
        )


def _broken(form: Form) -> Iterator[Text]:
    one = form.written(PARIS)
    yield Text("cut in the arguments", form, one[: one.index("Paris") + 3], None)
    if form.end:
        yield Text("no end tag", form, one.removesuffix(form.end).rstrip("\n"), [PARIS])
    if form.start and form.kind != "python":
        is_whole = form.family in ("qwen3_coder", "llama3", "deepseekv3", "deepseekv31", "kimi_k2")
        yield Text("start tag twice", form, form.start + one, [PARIS])
        yield Text("no start tag", form, one.replace(form.start, "", 1), [PARIS] if is_whole else [])
    if form.kind != "bare":
        yield Text(
            "broken call, then a right one", form, form.wrap([form.one("f", "{{"), form.one(*_body(form))]), None
        )
    else:
        yield Text("broken call, then a right one", form, form.wrap([form.one("f", "<"), form.one(*_body(form))]), None)


def _body(form: Form) -> tuple[str, str]:
    return "f", form.body(PARIS[1])


def _json(form: Form) -> Iterator[Text]:
    def text(kind: str, body: str, meant: list[Call] | None = None) -> Text:
        return Text(kind, form, form.call("f", body), meant)

    yield text("arguments as a JSON text", '"{\\"city\\": \\"Paris\\"}"', [PARIS])
    yield text("arguments as another text", '"Paris"')
    yield text("arguments as a list", '["Paris"]')
    yield text("arguments null", "null")
    yield text("one name twice", '{"city": "Paris", "city": "Rome"}')
    yield text("a whole number of 65 bits", '{"count": 18446744073709551616}')
    yield text("a number of 21 digits", '{"ratio": 3.14159265358979323846}')
    yield text("a number beyond all", '{"ratio": 1e999}')
    yield text("NaN", '{"ratio": NaN}')
    yield text("half a character", '{"city": "\\ud83d"}')
    yield text("a comma too many", '{"city": "Paris",}')
    yield text("Python's quotes", "{'city': 'Paris'}")
    yield text("a comment", '{"city": "Paris" /* of France */}')
    yield text("a line break in a JSON text", '{"city": "a\nb"}')
    yield text("blanks around everything", '\n {\n "city" :\t"Paris" }\n ', [PARIS])


def _named(form: Form) -> Iterator[Text]:
    yield from _json(form)
    other = "parameters" if "arguments" in form.one("", "") else "arguments"

    def text(kind: str, call: str, meant: list[Call] | None = None) -> Text:
        return Text(kind, form, form.call("f", "{}").replace(form.one("f", "{}"), _in_tags(form, call)), meant)

    yield text("the other name for arguments", f'{{"name": "f", "{other}": {{"city": "Paris"}}}}', [PARIS])
    yield text(
        "both names for arguments", '{"name": "f", "arguments": {"city": "Paris"}, "parameters": {"city": "Rome"}}'
    )
    yield text(
        "no name for arguments", '{"name": "clock"}', None if form.family == "llama3, no tag" else [("clock", {})]
    )
    yield text("arguments beside the name", '{"name": "f", "city": "Paris"}')
    yield text("an argument beside the arguments", '{"name": "f", "arguments": {"count": 1}, "city": "Paris"}')
    yield text("no name", '{"arguments": {"city": "Paris"}}')
    yield text(
        "OpenAI's form",
        '{"type": "function", "function": {"name": "f", "arguments": "{\\"city\\": \\"Paris\\"}"}}',
        [PARIS],
    )
    if form.family == "mistral":
        yield Text("no blank behind the token", form, form.written(PARIS).replace("] [", "][", 1), [PARIS])
    if form.family == "llama3, no tag":
        yield Text("an answer with a name", form, '{"name": "Goethe"}', [])
        yield Text("an answer with a name and more", form, '{"name": "Goethe", "born": 1749}', [])
        yield Text("an answer of a list", form, '[{"name": "Goethe"}]', [])


def _in_tags(form: Form, call: str) -> str:
    return f"{form.start}\n{call}\n{form.end}" if form.family == "hermes" else call


def _bare(form: Form) -> Iterator[Text]:
    values = {
        "five for a number": ("count", "five", "five"),
        "a fraction for a whole number": ("count", "5.5", "5.5"),
        "5.0 for a whole number": ("count", "5.0", 5),
        "True as Python writes it": ("flag", "True", True),
        "yes for a truth value": ("flag", "yes", "yes"),
        "a whole number of 65 bits": ("count", "18446744073709551616", "18446744073709551616"),
        "a number of 21 digits": ("ratio", "3.14159265358979323846", "3.14159265358979323846"),
        "a number beyond all": ("ratio", "1e999", "1e999"),
        "a list as Python writes it": ("rows", "[['5', 'a']]", [["5", "a"]]),
        "a list that is none": ("rows", "a, b", "a, b"),
        "quotes around a text": ("city", '"Paris"', '"Paris"'),
        "blanks around a text": ("city", "  Paris  ", "  Paris  "),
        "a text of oneOf": ("either", "auto", "auto"),
    }
    for kind, (key, text, value) in values.items():
        yield Text(kind, form, form.written(("f", {key: text})), [("f", {key: value})])
    two = form.written(("f", {"city": "Paris", "count": 5}))
    end = "</parameter>" if "</parameter>" in two else "</arg_value>"
    yield Text("no end of a value before the next", form, two.replace(end, "", 1), None)
    yield Text("no end of the last value", form, end.join(two.split(end)[:2]) + two.split(end)[2], None)
    yield Text(
        "one parameter twice", form, form.call("f", form.body({"city": "Paris"}) + form.body({"city": "Rome"})), None
    )
    yield Text("text between the parameters", form, form.call("f", f"Well: {form.body(PARIS[1])}"), None)
    yield Text("all on one line", form, form.written(PARIS).replace("\n", ""), [PARIS])
    if form.family == "qwen3_coder":
        inner = form.written(PARIS).removeprefix(f"{_TAG}\n").removesuffix(f"\n{_END_TAG}")
        yield Text("no outer tag", form, inner, [PARIS])


def _literal(form: Form) -> Iterator[Text]:
    def text(kind: str, body: str, meant: list[Call] | None = None) -> Text:
        return Text(kind, form, form.call("f", body), meant)

    yield text("JSON's constants", "flag=true, maybe=null", [("f", {"flag": True, "maybe": None})])
    yield text("an argument without a name", '"Paris"')
    yield text("one name twice", 'city="Paris", city="Rome"')
    yield text("a whole number of 65 bits", "count=18446744073709551616")
    yield text("a number of 21 digits", "ratio=3.14159265358979323846")
    yield text("a number beyond all", "ratio=1e999")
    yield text("a number that begins with 0", "count=007")
    yield text("a sum", "count=1 + 2")
    yield text("a variable", "city=paris")
    yield text("a text that is not closed", 'city="Paris')
    yield text("texts side by side", "city=\"Pa\" 'ris'", [PARIS])
    yield text("a tuple", 'rows=(("5", "a"),)', [("f", {"rows": [["5", "a"]]})])
    yield text("three quotes", 'city="""a\n"b" c"""', [("f", {"city": 'a\n"b" c'})])
    yield text("escapes", r'city="\x50\u0061ris"', [PARIS])
    if form.family == "pythonic":
        yield Text("an answer that is a list", form, "[sqrt(x) for x in range(3)]", [])
