"""Arguments of bundled tools are read and refused as pydantic reads and refuses them."""

import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from sampler.mcp_docker.tools import arguments
from sampler.mcp_docker.tools.arguments import ToolArguments, WrongArguments
from tests.conftest import ROOT

for path in (ROOT / "sampler" / "mcp_docker" / "tools").glob("[a-z]*.py"):
    if path.stem != "python_worker":  # a program
        importlib.import_module(f"sampler.mcp_docker.tools.{path.stem}")
CLASSES = [ToolArguments, *ToolArguments.__subclasses__()]
_WORDS = {
    "exclusiveMinimum": "gt",
    "minimum": "ge",
    "maximum": "le",
    "minLength": "min_length",
    "maxLength": "max_length",
    "description": "description",
}


def model_of(cls: type[ToolArguments]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name, (kind, rule) in cls._fields.items():
        told = {_WORDS[key]: value for key, value in rule.schema.items() if key != "default"}
        fields[name] = (kind, Field(**told) if rule.default is arguments._REQUIRED else Field(rule.default, **told))
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid"), **fields)


MODELS = {cls: model_of(cls) for cls in CLASSES}
NAMES = sorted({name for cls in CLASSES for name in cls._fields})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 12_000),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.integers(-5, 700).map(str),
    st.floats(-1, 700).map(lambda value: str(round(value, 2))),
    st.sampled_from(["", " 5 ", "5.0", "5.5", "1e3", "nan", "inf", "x" * 2001, "x" * 5000, "\ud83d", [], {}, [1], 5.0]),
)


def test_every_bundled_tool_is_compared() -> None:
    assert {cls.__name__ for cls in CLASSES} > {"CalculatorArguments", "PythonArguments", "QueryArguments"}
    assert len(CLASSES) > 10


@given(st.data())
def test_the_same_arguments_are_taken_with_the_same_values(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(CLASSES))
    names = st.sampled_from([*cls._fields, *cls._fields, "self", "more"])
    given_values = data.draw(st.dictionaries(names, VALUES))
    try:
        expected = MODELS[cls].model_validate(given_values).model_dump()
    except ValidationError:
        with pytest.raises(WrongArguments):
            cls(**given_values)
        return
    found = vars(cls(**given_values))
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert type(found[name]) is type(value)
        assert found[name] == value or (math.isnan(value) and math.isnan(found[name]))


@pytest.mark.parametrize("cls", CLASSES)
def test_the_schema_is_pydantics_without_titles(cls: type[ToolArguments]) -> None:
    expected = MODELS[cls].model_json_schema()
    expected.pop("title")
    properties = {name: {**schema} for name, schema in expected["properties"].items()}
    for schema in properties.values():
        schema.pop("title")
    found = dict(cls.json_schema)
    assert found.pop("properties") == properties
    assert found.pop("required", []) == expected.pop("required", [])
    assert found == {key: value for key, value in expected.items() if key != "properties"}
    jsonschema.Draft202012Validator.check_schema(cls.json_schema)


def test_a_process_that_forks_the_calculator_loads_neither_pydantic_nor_asyncio(tmp_path: Path) -> None:
    program = "import sys, shared.forks.tools, sampler.mcp_docker.tools.calculator; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"pydantic", "pydantic_core", "asyncio", "mcp", "inspect", "logging"} & set(loaded.stdout.split())
