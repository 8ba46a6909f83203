"""The schemas that public MCP servers and frameworks publish: an argument that a schema allows reaches the server as the model
meant it. What is allowed is asked of the package jsonschema, not of our own reading."""

import json
from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from pydantic import BaseModel, Field

from sampler.core.parsers import get_parser
from tests.sampler.call_forms import FORMS, Arguments, Form, bare
from tests.sampler.parser_table import strict

SERVERS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "tool_schemas.json").read_text(encoding="utf-8")
)["servers"]
POOL: list[Any] = [
    "2024", "true", "null", "None", "a", "", "5.5", '["a"]', '{"a": 1}', " x ", "https://example.com/?a=1&b=<c>", "one\ntwo",
    5, 0, -3, 2.5, True, False, None, [], ["5", "null"], [["5"]], [5], {}, {"a": "5", "b": [None, True]},
]  # fmt: skip
BARE = [form for form in FORMS if form.kind == "bare"]
QUOTED = [form for form in FORMS if form.kind != "bare"]


class Year(StrEnum):
    A = "2023"
    B = "2024"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int | None = None


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Node(BaseModel):
    value: int
    next: "Node | None" = None


class Everything(BaseModel):
    """What a framework makes of Python's types."""

    year: Year
    maybe_year: Year | None = None
    default_year: Annotated[Year, Field(description=".")] = Year.A
    level: Level = Level.LOW
    one: Literal["1"] = "1"
    two: Literal["2", 2]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    tree: Node | None = None
    table: dict[str, list[int]] = {}
    rows: list[list[str]] = []
    text_or_list: str | list[str] = ""
    number_or_text: int | str = 0
    anything: Any = None
    flag: bool = False
    ratio: float = Field(1.0, ge=0)
    big: int = 0


FRAMEWORKS: dict[str, Any] = {
    "pydantic": Everything.model_json_schema(),
    "zod-to-json-schema": {
        "type": "object",
        "properties": {
            "u": {"anyOf": [{"not": {}}, {"type": "string"}]},
            "n": {"anyOf": [{"not": {}}, {"type": "integer"}]},
            "v": {"type": "string", "const": "2024"},
            "r": {"type": "object", "additionalProperties": {"type": "string"}},
            "same": {"$ref": "#/properties/v"},
        },
        "additionalProperties": False,
        "$schema": "http://json-schema.org/draft-07/schema#",
    },
    "OpenAI, strict": {
        "type": "object",
        "properties": {"zip": {"type": ["string", "null"]}, "days": {"type": ["integer", "null"]}},
        "required": ["zip", "days"],
        "additionalProperties": False,
    },
    "union of objects": {
        "oneOf": [
            {"properties": {"by": {"const": "id"}, "id": {"type": "string"}}, "required": ["by", "id"]},
            {"properties": {"by": {"const": "age"}, "age": {"type": "integer"}}, "required": ["by", "age"]},
        ]
    },
}


def tools() -> Iterator[tuple[str, str, Any]]:
    for server in SERVERS:
        for tool in server["tools"]:
            yield server["package"], tool["name"], tool["inputSchema"]
    for framework, schema in FRAMEWORKS.items():
        yield framework, "f", schema


def parameters(root: Mapping[str, Any]) -> dict[str, Any]:
    """Name and schema of each, also in the branches of a union."""
    found: dict[str, Any] = {}
    for one in (root, *root.get("oneOf", ())):
        found |= one.get("properties", {})
    return found


def validator(root: Mapping[str, Any], schema: Any) -> Validator:
    defined = {key: root[key] for key in ("$defs", "definitions") if key in root}
    if "$ref" in json.dumps(schema) and not defined:
        return Draft202012Validator({"$ref": "#/x", "x": schema, "properties": root.get("properties", {})})
    return Draft202012Validator({"allOf": [schema], **defined})


def candidates(schema: Any) -> list[Any]:
    """The values that the schema names, however deep, and the pool."""
    named: list[Any] = []
    level: list[Any] = [schema]
    while level:
        parts = [one for one in level if isinstance(one, dict)]
        for one in parts:
            named += [*one.get("enum", ()), one.get("const"), one.get("default")]
        lists = [one for one in level if isinstance(one, list)]
        level = [
            inner for outer in (*parts, *lists) for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return [*named, *POOL]


def means_only(value: Any, schema: Any, allowed: Validator) -> bool:
    """Whether the bare text of an allowed value has no other reading that is allowed."""
    text = bare(value)
    if not isinstance(value, str):
        return value is None or isinstance(value, list | dict) or not allowed.is_valid(text)
    try:
        other = json.loads(text)
    except ValueError:
        other = {"None": None, "True": True, "False": False}.get(text.strip(), text)
    if isinstance(other, list | dict):  # its members are not looked at
        return isinstance(schema, dict) and schema.get("type") == "string"
    return isinstance(other, str) or not (allowed.is_valid(other) and (other is None or allowed.is_valid(POOL)))


def check(form: Form, name: str, root: Any, arguments: Arguments) -> None:
    listed = [{"type": "function", "function": {"name": name, "parameters": root}}]
    reply = get_parser(form.parser)(form.written((name, arguments)), listed)
    assert reply.errors == []
    assert strict([[call.name, dict(call.arguments)] for call in reply.tool_calls]) == strict([[name, arguments]])


@pytest.mark.parametrize("package", sorted({package for package, _, _ in tools()}))
def test_what_a_published_schema_allows_is_sent_as_the_model_wrote_it(package: str) -> None:
    checked = 0
    for owner, name, root in tools():
        if owner != package:
            continue
        for key, schema in parameters(root).items():
            allowed = validator(root, schema)
            seen: set[str] = set()
            for value in candidates(schema):
                if repr(value) in seen or not allowed.is_valid(value):
                    continue
                seen.add(repr(value))
                if means_only(value, schema, allowed):
                    for form in BARE:
                        check(form, name, root, {key: value})
                        checked += 1
    assert checked > 0


def test_the_families_that_quote_need_no_schema() -> None:
    for owner, name, root in tools():
        if owner == "pydantic":
            for form in QUOTED:
                check(form, name, root, {f"k{at}": value for at, value in enumerate(POOL)})


def test_there_are_hundreds_of_tools_of_a_dozen_servers_with_all_kinds_of_schemas() -> None:
    assert len(SERVERS) > 12
    assert len(list(tools())) > 240
    assert all(server["version"] and server["license"] for server in SERVERS)
    everything = json.dumps(SERVERS) + json.dumps(FRAMEWORKS)
    for keyword in ("$ref", "anyOf", "oneOf", "const", "enum", "additionalProperties", "not", "$defs"):
        assert f'"{keyword}"' in everything, keyword
