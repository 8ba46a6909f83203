"""Converts arguments that a model writes as bare text (`<parameter=count>5</parameter>`), by the tool's schema.

A text is converted only to a value that the schema allows and that has all its digits; else it stays text, and the tool reports
the error. Where the schema allows any text, only `null`, objects and lists that it allows too are converted: "5" stays "5".
Without a schema, text that is valid JSON is parsed as JSON.
"""

from typing import Any

from sampler.core.parsers.json_values import read_json
from sampler.core.parsers.python_values import NotPython, PythonReader
from sampler.core.parsers.reply import ToolSchemas, schema_of
from sampler.core.parsers.schema_types import ANYTHING, Kinds, ParameterTypes, allows, kind_of

_CONSTANTS = {"True": True, "False": False, "None": None}
_NO_VALUE = object()
_CONTAINERS = ("array", "object")


class ToolTypes:
    """The parameters' types of `tools`. Every parameter of a tool that is not among them may be anything."""

    def __init__(self, tools: ToolSchemas) -> None:
        self._tools = tools
        self._known: dict[str, ParameterTypes] = {}

    def of(self, name: str) -> ParameterTypes:
        if name not in self._known:
            function = schema_of(self._tools, name)
            self._known[name] = ParameterTypes(None if function is None else function.get("parameters"))
        return self._known[name]


def typed(text: str, kinds: Kinds) -> Any:
    """The value of `text`."""
    if kinds == ANYTHING:
        value = _literal(text)
        return text if value is _NO_VALUE or isinstance(value, str) else value
    if allows({kind: values for kind, values in kinds.items() if values is not None}, text):
        return text
    is_free_text = allows(kinds, text)
    value = _literal(text)
    if value is _NO_VALUE and not is_free_text and any(kind in kinds for kind in _CONTAINERS):
        value = _python_container(text)
    if value is _NO_VALUE or not allows(kinds, value):
        return text
    if is_free_text and not (value is None or kind_of(value) in _CONTAINERS):
        return text
    return _whole(value) if kind_of(value) == "integer" and "number" not in kinds else value


def _whole(value: int | float) -> int | float:
    """Of `5.0` for a whole number."""
    return int(value) if abs(value) < 2**63 else value


def _literal(text: str) -> Any:
    """The value that is written as JSON, or as a constant of Python."""
    value, why = read_json(text)
    return value if not why else _CONSTANTS.get(text.strip(), _NO_VALUE)


def _python_container(text: str) -> Any:
    """Some models write lists and objects as Python does: {'a': None}."""
    reader = PythonReader(text)
    reader.blanks()
    if text[reader.at : reader.at + 1] not in ("[", "{"):
        return _NO_VALUE
    try:
        value = reader.value()
    except NotPython:
        return _NO_VALUE
    reader.blanks()
    return value if reader.at == len(text) else _NO_VALUE
