"""Any schema and any arguments that it allows: what a family's model writes is read as the same call, in each of its forms and as
its template writes it. And no schema and no text makes a parser raise."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sampler.core.parsers import PARSERS, get_parser
from sampler.core.parsers.schema_types import ParameterTypes
from sampler.core.rendering.marks import MARK_END, MARK_START
from tests.sampler.call_forms import FORMS, Form
from tests.sampler.families import FAMILIES, Call, Family, Reply
from tests.sampler.fuzz_parsers import MARKERS
from tests.sampler.parser_table import strict

QUESTION = [{"role": "user", "content": "What is A?"}]
EXAMPLES = 25
PIECES = ['"', "'", "\\", "\n", "{", "}", "]", ":", "</tool_call>", "```", "\\u0041", "null", "True", "2024", " "]

# Without U+0000, which is no text here, and the marks of `sampler/core/rendering/marks.py`, which a rendering leaves out.
characters = st.text(st.characters(codec="utf-8", exclude_characters=f"\0{MARK_START}{MARK_END}"), max_size=8)
# Of families that write a text as it is, a text may hold no tags; of all, no mark of the reasoning.
plain_texts = st.lists(characters | st.sampled_from([p for p in PIECES if "<" not in p]), max_size=3).map("".join)
json_texts = st.lists(characters | st.sampled_from(PIECES), max_size=3).map("".join)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("true", "false", "null", "self")
)
whole = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | whole | numbers | plain_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
Typed = tuple[dict[str, Any], Any]  # a schema and a value that it allows


def of_type(name: str, found: st.SearchStrategy[Any]) -> st.SearchStrategy[Typed]:
    return found.map(lambda value: ({"type": name}, value))


simple = (
    of_type("string", plain_texts)
    | of_type("integer", whole)
    | of_type("number", numbers | whole)
    | of_type("boolean", st.booleans())
    | of_type("null", st.none())
    | st.lists(values, max_size=3).map(lambda value: ({"type": "array", "items": {}}, value))
    | st.dictionaries(names, values, max_size=3).map(lambda value: ({"additionalProperties": True}, value))
    | (plain_texts | whole | st.booleans()).map(lambda value: ({"const": value}, value))
    | st.tuples(st.lists(plain_texts | whole | st.booleans(), max_size=3), whole | plain_texts).map(
        lambda both: ({"enum": [*both[0], both[1]]}, both[1])
    )
)


@st.composite
def wrapped(draw: st.DrawFn) -> Typed:
    """In references, unions and conjunctions, as servers write them."""
    schema, value = draw(simple)
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(["ref", "all", "maybe", "one"])):
            case "ref":
                schema = {"$ref": "#/$defs/A", "$defs": {"A": schema}}
            case "all":
                schema = {"allOf": [schema], "description": "."}
            case "maybe":
                schema = {"anyOf": [schema, {"type": "null"}]}
            case _:
                schema = {"oneOf": [schema]}
    return schema, value


@st.composite
def tools_and_arguments(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    drawn = draw(st.dictionaries(names, wrapped(), max_size=4))
    defined: dict[str, Any] = {}
    properties = {key: placed(schema, defined) for key, (schema, _) in drawn.items()}
    parameters = {"type": "object", "properties": properties, "$defs": defined}
    tool = {"type": "function", "function": {"name": "lookup", "description": ".", "parameters": parameters}}
    return [tool], {key: value for key, (_, value) in drawn.items()}


def placed(schema: Any, defined: dict[str, Any]) -> Any:
    """Definitions stand at the root, under names of their own."""
    if isinstance(schema, list):
        return [placed(one, defined) for one in schema]
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return schema
    if "$ref" in schema:
        name = f"D{len(defined)}"
        defined[name] = None
        defined[name] = placed(schema["$defs"]["A"], defined)
        return {"$ref": f"#/$defs/{name}"}
    return {key: placed(value, defined) for key, value in schema.items()}


def is_ambiguous(tools: list[dict[str, Any]], arguments: dict[str, Any]) -> bool:
    """Whether a bare text means two values: `null` where a text and null are allowed, `5` of the enum ["5", 5]."""
    types = ParameterTypes(tools[0]["function"]["parameters"])
    return any(
        (isinstance(value, str) and (value.strip() in ("null", "None") or has_twin(value)) and len(types.of(key)) > 1)
        or (not isinstance(value, str) and "string" in types.of(key))
        for key, value in arguments.items()
    )


def has_twin(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return text.strip() in ("True", "False")
    return True


def check(parser: str, text: str, tools: list[dict[str, Any]], arguments: dict[str, Any]) -> None:
    reply = get_parser(parser)(text, tools)
    assert reply.errors == []
    assert strict([[call.name, dict(call.arguments)] for call in reply.tool_calls]) == strict([["lookup", arguments]])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.family)
@given(drawn=tools_and_arguments())
@settings(max_examples=EXAMPLES)
def test_a_call_in_each_form_is_read_with_the_same_arguments(
    form: Form, drawn: tuple[list[dict[str, Any]], dict[str, Any]]
) -> None:
    assume(form.kind != "bare" or not is_ambiguous(*drawn))
    check(form.parser, form.written(("lookup", drawn[1])), *drawn)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
@given(drawn=tools_and_arguments())
@settings(max_examples=EXAMPLES)
def test_a_call_that_a_template_writes_is_read_with_the_same_arguments(
    family: Family, drawn: tuple[list[dict[str, Any]], dict[str, Any]]
) -> None:
    tools, arguments = drawn
    assume(family.parser not in ("qwen3_coder", "glm45") or not is_ambiguous(*drawn))
    mode = next(iter(family.modes))
    reply = Reply(calls=[Call(family.call_id(0, "lookup"), "lookup", arguments)])
    check(family.parser, family.written(mode, QUESTION, tools, reply).text, tools, arguments)


@pytest.mark.parametrize("form", [form for form in FORMS if form.kind != "bare"], ids=lambda form: form.family)
@given(text=json_texts)
@settings(max_examples=EXAMPLES)
def test_a_text_with_tags_is_read_in_the_families_that_quote_it(form: Form, text: str) -> None:
    check(form.parser, form.written(("lookup", {"x": text})), [], {"x": text})


any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.sampled_from(["string", "#", "#/$defs/a", "null", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "not", "properties", "$defs", "a", "then",
                    "items", "additionalProperties", "patternProperties", "nullable", "$id", "$anchor",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("parser", sorted(set(PARSERS) - {"qwen", "qwen25"}))
@given(schema=any_json, text=st.lists(st.sampled_from(MARKERS) | characters, max_size=12).map("".join))
@settings(max_examples=EXAMPLES)
def test_no_schema_and_no_text_raises(parser: str, schema: Any, text: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    parse = get_parser(parser)
    parse(text, tools)
    for form in FORMS:
        if form.parser == parser:
            parse(form.call("f", form.body({"a": text, "type": "5", "": "null"})), tools)
