"""Any JSON as the schema of a tool: rendered or refused, stored, and read by every parser without an error of ours."""

import contextlib
from typing import Any

import bson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sampler.core.parsers import PARSERS, get_parser
from sampler.core.parsers.forms import CALL_FORMS
from shared.documents.tool_schemas import ToolSchemas, hash_of
from shared.errors import ConfigError
from shared.outside_values import problem_of
from tests.sampler.episodes import TEMPLATE

WORDS = ("type", "properties", "required", "$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "enum", "items", "prefixItems",
         "additionalProperties", "not", "default", "description", "a", "#/$defs/a", "#", "string", "integer", "object", "array",
         "null", "boolean", "number", "$schema", "definitions", "patternProperties", "if", "then", "nullable")  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(WORDS) | st.text(max_size=3)
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=25,
)
VALUES = st.sampled_from(
    ["1", "true", '"x"', "[1]", '{"a": 1}', "null", "x", "", "1e999", "\\ud83d", "9" * 30, "[" * 100]
)


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, value=VALUES)
def test_any_schema_types_a_reply_or_the_model_reads_an_error(parser: str, schema: Any, value: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}
    texts = [
        '<tool_call>{"name": "f", "arguments": {"a": %s}}</tool_call>' % (value or "1"),
        f"<tool_call><function=f><parameter=a>{value}</parameter></function></tool_call>",
        f"<tool_call>f<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>",
        '{"name": "f", "parameters": {"a": %s}}' % (value or "1"),
        f"[f(a={value})]",
        CALL_FORMS[parser],
    ]
    for text in texts:
        parsed = get_parser(parser)(text, [tool])
        for call in parsed.tool_calls:
            assert problem_of([call.name, dict(call.arguments)], most_depth=66) is None
            bson.encode({"a": dict(call.arguments)})


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS)
def test_any_schema_is_rendered_or_refused_and_stored(schema: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}
    with contextlib.suppress(ConfigError):
        TEMPLATE.render_ids([{"role": "user", "content": "?"}], [tool], add_generation_prompt=True)
    stored = ToolSchemas.of([tool])
    assert stored.id == hash_of([tool])
    bson.encode(stored.to_mongo())
