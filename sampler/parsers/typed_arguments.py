"""Converts arguments that a model writes as bare text (`<parameter=count>5</parameter>`), by the tool's schema.

A string parameter keeps its text, even "5" or "null". Without a schema, text that is valid JSON is parsed as JSON.
"""

from collections.abc import Mapping
from typing import Any

from sampler.parsers.json_calls import read_json
from sampler.parsers.reply import ToolSchemas

_CONSTANTS = {"True": True, "False": False, "None": None}


def argument_types(tools: ToolSchemas, name: str) -> dict[str, set[str]]:
    """The JSON types that the schema of the tool `name` allows, by parameter; empty if unspecified."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            if isinstance(properties, Mapping):
                return {str(key): _types(schema) for key, schema in properties.items()}
    return {}


def typed(text: str, types: set[str] | None) -> Any:
    """The value of `text`. Text that fits no type stays text: the tool reports the error."""
    types = types or set()
    if types == {"string"}:
        return text
    if "null" in types and text.strip() in ("null", "None"):
        return None
    value, why = read_json(text)
    if why:
        value = _CONSTANTS.get(text.strip(), text)
    if isinstance(value, str) or ("string" in types and not isinstance(value, dict | list)):
        return text
    return value


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    found = schema.get("type")
    names = {t for t in (found if isinstance(found, list) else [found]) if isinstance(t, str)}
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list) else []:
            names |= _types(option)
    if not names and isinstance(schema.get("enum"), list) and all(isinstance(v, str) for v in schema["enum"]):
        names = {"string"}
    return names
