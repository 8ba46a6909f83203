"""The texts of the comparison with other engines' parsers (`tests/sampler/parser_table.py`): each form of `call_forms.py`, well
written and broken."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.sampler.call_forms import END_TAG, FORMS, TAG, Call, Form


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
    yield text("arguments as members of the call", '{"name": "f", "city": "Paris"}')
    yield text("an argument outside of the arguments", '{"name": "f", "arguments": {"count": 1}, "city": "Paris"}')
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
        inner = form.written(PARIS).removeprefix(f"{TAG}\n").removesuffix(f"\n{END_TAG}")
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
