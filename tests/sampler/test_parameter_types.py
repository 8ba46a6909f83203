"""Arguments that a model writes as text get the type that the tool's schema allows, however the schema says it, in both families
that write them so; what the schema does not allow, or what would lose digits, stays the text that the model wrote."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.core.parsers import get_parser
from sampler.core.parsers.schema_types import ANYTHING, MAX_SCHEMAS, ParameterTypes, allows, kind_of
from sampler.core.parsers.typed_arguments import ToolTypes

DEFINED = {
    "Year": {"type": "string", "enum": ["2024", "2025"]},
    "Count": {"type": "integer"},
    "Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}},
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
    "Endless": {"$ref": "#/$defs/Endless"},
    "a/b~c": {"type": "string"},
    "Named": {"$anchor": "named", "type": "string"},
}
REF = "#/$defs/"


def texts_of(family: str, name: str, arguments: dict[str, str]) -> str:
    if family == "glm45":
        pairs = [f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items()]
        return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"
    pairs = [f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"


def read(family: str, root: Any, text: str, key: str = "x") -> Any:
    tools = [{"type": "function", "function": {"name": "f", "parameters": root}}]
    reply = get_parser(family)(texts_of(family, "f", {key: text}), tools)
    assert reply.errors == []
    return reply.tool_calls[0].arguments[key]


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "$defs": DEFINED, "definitions": DEFINED}


CASES = [
    # references
    ({"$ref": f"{REF}Year"}, "2024", "2024"),
    ({"$ref": "#/definitions/Year"}, "2024", "2024"),
    ({"$ref": f"{REF}Count"}, "2024", 2024),
    ({"$ref": f"{REF}a~1b~0c"}, "5", "5"),
    ({"$ref": "#named"}, "5", "5"),
    ({"$ref": f"{REF}Node"}, '{"next": null}', {"next": None}),
    ({"$ref": f"{REF}Loop"}, "5", 5),
    ({"$ref": f"{REF}Endless"}, "5", 5),
    ({"$ref": f"{REF}Missing"}, "5", 5),
    ({"$ref": "https://example.com/schema"}, "5", 5),
    ({"$ref": f"{REF}Year", "description": "a year"}, "2024", "2024"),
    # unions
    ({"anyOf": [{"$ref": f"{REF}Year"}, {"type": "null"}]}, "2024", "2024"),
    ({"anyOf": [{"$ref": f"{REF}Year"}, {"type": "null"}]}, "null", None),
    ({"anyOf": [{"$ref": f"{REF}Year"}, {"type": "null"}]}, "None", None),
    ({"oneOf": [{"type": "integer"}, {"type": "string", "enum": ["auto"]}]}, "5", 5),
    ({"oneOf": [{"type": "integer"}, {"type": "string", "enum": ["auto"]}]}, "auto", "auto"),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", "5"),
    ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, '["5"]', ["5"]),
    ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '{"a": 1}', '{"a": 1}'),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["integer", "null"]}, "7", 7),
    ({"anyOf": [{"not": {}}, {"type": "integer"}]}, "5", 5),
    ({"type": "string", "nullable": True}, "null", None),
    # all of them
    ({"allOf": [{"$ref": f"{REF}Year"}]}, "2024", "2024"),
    ({"allOf": [{"$ref": f"{REF}Year"}], "default": "2024"}, "2024", "2024"),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, "5", 5),
    ({"allOf": [{"type": ["string", "number"]}, {"minimum": 0}]}, "5", 5),
    ({"type": "string", "not": {"type": "null"}}, "null", "null"),
    ({"not": {"type": "string"}}, "5", 5),
    # constants and enumerations
    ({"const": "2024"}, "2024", "2024"),
    ({"const": 2024}, "2024", 2024),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": [1, 2]}, "1", 1),
    ({"enum": ["1", 2]}, "2", 2),
    ({"enum": ["1", 2]}, "1", "1"),
    ({"enum": ["true", False]}, "true", "true"),
    ({"enum": ["true", False]}, "False", False),
    ({"enum": ["a", None]}, "null", None),
    ({"type": "string", "const": "null"}, "null", "null"),
    ({"anyOf": [{"const": "1"}, {"const": 2}]}, "1", "1"),
    ({"enum": ["a"]}, '"a"', "a"),
    # types that are not written
    ({"pattern": "^[0-9]+$"}, "2024", "2024"),
    ({"properties": {"a": {}}}, '{"a": 1}', {"a": 1}),
    ({"items": {"type": "array", "items": {"type": "string"}}}, '[["5"]]', [["5"]]),
    ({"minimum": 0}, "5", 5),
    (True, "5", 5),
    ({}, "5", 5),
    ({}, "five", "five"),
    ({}, '"five"', '"five"'),
    ({"type": "str"}, "5", "5"),
    ({"type": "varchar"}, "5", "5"),
    ({"type": "int"}, "5", 5),
    ({"type": "no type at all"}, "5", 5),
    # what no type of the schema has stays text
    ({"type": "integer"}, "five", "five"),
    ({"type": "integer"}, "true", "true"),
    ({"type": "integer"}, "5.5", "5.5"),
    ({"type": "integer"}, "[5]", "[5]"),
    ({"type": "boolean"}, "1", "1"),
    ({"type": "number"}, "null", "null"),
    ({"type": "array"}, "a, b", "a, b"),
    ({"type": "object"}, "[1]", "[1]"),
    ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    ({"type": "string"}, "null", "null"),
    # numbers keep their value and their digits
    ({"type": "integer"}, "5.0", 5),
    ({"type": "integer"}, "1e3", 1000),
    ({"type": "number"}, "1e3", 1000.0),
    ({"type": "number"}, "0.1", 0.1),
    ({"type": "integer"}, "9223372036854775807", 2**63 - 1),
    ({"type": "integer"}, "18446744073709551615", "18446744073709551615"),
    ({"type": "number"}, "3.14159265358979323846", "3.14159265358979323846"),
    ({"type": "number"}, "1e999", "1e999"),
    ({"type": "number"}, "1e-400", "1e-400"),
    ({"type": "number"}, "NaN", "NaN"),
    ({"type": "integer"}, "007", "007"),
    ({}, "18446744073709551615", "18446744073709551615"),
    ({}, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    # Python's writing of what is no text
    ({"type": "boolean"}, "True", True),
    ({"type": "array"}, "['a', None]", ["a", None]),
    ({"type": "object"}, "{'a': True}", {"a": True}),
    ({"type": "object"}, "{'a': True} and", "{'a': True} and"),
]


@pytest.mark.parametrize("family", ["qwen3_coder", "glm45"])
@pytest.mark.parametrize(("schema", "text", "value"), CASES, ids=[f"{json.dumps(s)} {t}" for s, t, _ in CASES])
def test_a_text_becomes_the_value_that_the_schema_allows(family: str, schema: Any, text: str, value: Any) -> None:
    result = read(family, of(schema), text)
    assert (type(result), result) == (type(value), value)


YEAR = {"type": "string"}
ROOTS = [
    ({"additionalProperties": YEAR}, "2024"),
    ({"patternProperties": {"^x": YEAR}}, "2024"),
    ({"properties": {"y": {}}, "additionalProperties": {"type": "integer"}}, 2024),
    ({"properties": {"y": {}}, "additionalProperties": False}, 2024),
    ({"properties": {"y": {}}, "additionalProperties": True}, 2024),
    ({"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"x": YEAR}}}}, "2024"),
    ({"allOf": [{"properties": {"x": YEAR}}, {"properties": {"y": {}}}]}, "2024"),
    ({"oneOf": [{"properties": {"y": {}}}, {"properties": {"x": YEAR}}]}, "2024"),
    ({"properties": {"x": {}}, "anyOf": [{"properties": {"x": YEAR}}, {"properties": {"x": {"const": 5}}}]}, "2024"),
    ({"properties": {"y": {}}, "if": {}, "then": {"properties": {"x": YEAR}}}, "2024"),
    ({"$defs": {"x": YEAR}}, 2024),
    ({}, 2024),
    (None, 2024),
    (True, 2024),
    ([], 2024),
    ({"properties": []}, 2024),
    ({"properties": {"x": {"type": []}}}, 2024),
    ({"properties": {"x": {"anyOf": 5, "enum": 5, "$ref": 5, "allOf": {}}}}, 2024),
]


@pytest.mark.parametrize("family", ["qwen3_coder", "glm45"])
@pytest.mark.parametrize(("root", "value"), ROOTS, ids=[json.dumps(root) for root, _ in ROOTS])
def test_a_parameters_schema_is_resolved_wherever_it_may_stand(family: str, root: Any, value: Any) -> None:
    result = read(family, root, "2024")
    assert (type(result), result) == (type(value), value)


def test_schemas_that_name_themselves_many_times_cost_a_bounded_number_of_visits() -> None:
    names = [f"A{at}" for at in range(60)]
    defined: dict[str, Any] = {
        name: {"anyOf": [{"$ref": f"{REF}{following}"}] * 2, "allOf": [{"$ref": f"{REF}{following}"}] * 2}
        for name, following in zip(names, [*names[1:], names[0]], strict=True)
    }
    types = ParameterTypes({"properties": {"x": {"$ref": f"{REF}A0"}}, "$defs": defined})
    assert types.of("x") == ANYTHING
    assert -MAX_SCHEMAS < types._remaining < 0, "the bound was reached, and ended it"


def test_the_parameters_of_one_reply_cost_a_bounded_number_of_visits() -> None:
    """A reply may have any number of parameters and 64 calls, and a server any schema."""
    wide = {"anyOf": [{"properties": {"y": {}}}] * 1500}
    types = ToolTypes([{"function": {"name": "f", "parameters": wide}}])
    assert types.of("f") is types.of("f")
    for at in range(200):
        assert types.of("f").of(f"k{at}") == ANYTHING
    assert -MAX_SCHEMAS < types.of("f")._remaining_of_tool <= 0


def test_the_anchor_of_no_definition_and_a_list_in_a_pointer() -> None:
    root = {
        "properties": {"x": {"$ref": "#/anyOf/0/properties/x"}},
        "anyOf": [{"properties": {"x": {"type": "string"}}}],
    }
    assert read("glm45", root, "5") == "5"
    assert read("glm45", of({"$ref": "#nowhere"}), "5") == 5


names = st.sampled_from(["a", "b"])
plain = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "1", "a", "null"])
leaves = (
    st.sampled_from([{}, True, False])
    | st.builds(lambda t: {"type": t}, st.sampled_from(sorted(ANYTHING)))
    | st.builds(lambda v: {"enum": v}, st.lists(plain, max_size=3))
    | st.builds(lambda n: {"$ref": f"{REF}{n}"}, names)
)
schemas = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda key, options: {key: options},
        st.sampled_from(["anyOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def validates(schema: Any, value: Any, defined: dict[str, Any], depth: int = 12) -> bool:
    """By the definition of each keyword. A reference that comes to no end allows nothing."""
    if isinstance(schema, bool):
        return schema
    if depth == 0:
        return False
    inner = [validates(one, value, defined, depth - 1) for key in ("anyOf", "allOf") for one in schema.get(key, ())]
    kind = kind_of(value)
    return all(
        (
            schema.get("type", kind) == kind or (schema["type"], kind) == ("number", "integer"),
            any(kind_of(one) == kind and one == value for one in schema.get("enum", [value])),
            "$ref" not in schema or validates(defined[schema["$ref"].removeprefix(REF)], value, defined, depth - 1),
            any(inner) if "anyOf" in schema else all(inner),
        )
    )


@given(schemas, st.fixed_dictionaries({"a": schemas, "b": leaves}), plain)
@settings(deadline=None, max_examples=300)
def test_what_is_allowed_is_what_validates(schema: Any, defined: dict[str, Any], value: Any) -> None:
    kinds = ParameterTypes({"properties": {"x": schema}, "$defs": defined}).of("x")
    if validates(schema, value, defined):
        assert allows(kinds, value)
    elif "$ref" not in json.dumps(schema) and kinds != ANYTHING:
        assert not allows(kinds, value)
