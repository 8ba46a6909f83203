"""Which values a tool's JSON schema allows for a parameter: the one place where types are resolved.

Read: `type` (a name, a list, common other names), `enum`, `const`, `$ref` within the schema (pointers, anchors, recursive ones),
`anyOf`, `oneOf`, `allOf`, `not` of types, `nullable`, `properties`, `additionalProperties`, `patternProperties`, booleans as
schemas, and keywords that belong to one type. Everything else restricts nothing. A schema that cannot be read, contradicts itself
or is larger than the bounds below allows everything. Nothing is fetched and nothing raises.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sampler.core.parsers.json_pointers import resolved
from shared.outside_values import MAX_DEPTH

# By JSON type, which of its values are allowed: None for all, else these. "number": numbers with a fraction; whole ones are
# "integer".
Kinds = Mapping[str, tuple[Any, ...] | None]

MAX_SCHEMAS = 2000  # visited for one parameter
MAX_SCHEMAS_OF_TOOL = 100_000  # for all parameters of one call: half a second

ANYTHING: Kinds = dict.fromkeys(("null", "boolean", "integer", "number", "string", "array", "object"))
NOTHING: Kinds = {}
_NUMBERS = ("integer", "number")
_OTHER_NAMES = {
    "null": "none nil",
    "boolean": "bool",
    "integer": "int int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 long short bigint smallint",
    "number": "float float32 float64 double decimal numeric real",
    "string": "str text varchar char enum uuid date datetime time timestamp",
    "array": "list tuple set arr",
    "object": "dict map",
}
_TYPE_OF_NAME = {other: name for name, others in _OTHER_NAMES.items() for other in (name, *others.split())}
_IMPLIED = (
    (("properties", "additionalProperties", "patternProperties", "required"), ("object",)),
    (("items", "prefixItems", "minItems", "maxItems"), ("array",)),
    (("pattern", "minLength", "maxLength", "format"), ("string",)),
    (("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBERS),
)
_STATED = ("type", "enum", "const", "$ref", "$dynamicRef", "$recursiveRef", "anyOf", "oneOf", "allOf", "not")


def kind_of(value: Any) -> str:
    """The JSON type of a plain value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def allows(kinds: Kinds, value: Any) -> bool:
    kind = kind_of(value)
    if kind not in kinds:
        return False
    values = kinds[kind]
    return values is None or value in values


class ParameterTypes:
    """The parameters of one tool, whose arguments have the schema `root`. Each parameter is resolved when it is asked for."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, Kinds] = {}
        self._open: set[int] = set()
        self._searched: set[int] = set()
        self._remaining = 0
        self._remaining_of_tool = MAX_SCHEMAS_OF_TOOL
        self._by_name: dict[str, Kinds] = {}

    def of(self, name: str) -> Kinds:
        """What the schema allows for the parameter `name`; `ANYTHING` if it says nothing of it."""
        if name in self._by_name or self._remaining_of_tool <= 0:
            return self._by_name.get(name, ANYTHING)
        self._remaining = MAX_SCHEMAS
        self._open.clear()
        self._searched.clear()
        self._by_name[name] = self._parameter(self._root, name, 0) or ANYTHING
        self._remaining_of_tool -= MAX_SCHEMAS - self._remaining
        return self._by_name[name]

    def _parameter(self, schema: Any, name: str, depth: int) -> Kinds | None:
        """None: the schema says nothing of the parameter."""
        if not isinstance(schema, Mapping) or id(schema) in self._searched or not self._may_visit(depth):
            return None
        self._searched.add(id(schema))
        inner = partial(self._parameter, name=name, depth=depth + 1)
        parts = [self._own(schema, name, depth), *(inner(one) for one in self._conjuncts(schema))]
        for options in _options(schema):
            parts.append(_united([one for one in map(inner, options) if one is not None]))
        stated = [part for part in parts if part is not None]
        if not stated:
            stated = [part for part in map(inner, (schema.get("then"), schema.get("else"))) if part is not None][:1]
        self._searched.discard(id(schema))
        return _common(stated) if stated else None

    def _own(self, schema: Mapping[str, Any], name: str, depth: int) -> Kinds | None:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return self._kinds(properties[name], depth + 1)
        patterns = schema.get("patternProperties")
        others = list(patterns.values()) if isinstance(patterns, Mapping) else []
        if isinstance(schema.get("additionalProperties"), Mapping):
            others.append(schema["additionalProperties"])
        return _united([self._kinds(one, depth + 1) or NOTHING for one in others])

    def _kinds(self, schema: Any, depth: int) -> Kinds | None:
        """What a schema allows. None: it is being resolved, further out."""
        if not isinstance(schema, Mapping):
            return NOTHING if schema is False else ANYTHING
        if id(schema) in self._known:
            return self._known[id(schema)]
        if id(schema) in self._open:
            return None
        if not self._may_visit(depth):
            return ANYTHING
        self._open.add(id(schema))
        parts = list(self._restrictions(schema, depth))
        self._open.discard(id(schema))
        if not parts:
            return None
        kinds = _common(parts)
        if schema.get("nullable") is True:
            kinds = {**kinds, "null": None}
        if not self._open:  # else it may lack what a schema further out adds to it
            self._known[id(schema)] = kinds
        return kinds

    def _restrictions(self, schema: Mapping[str, Any], depth: int) -> Iterator[Kinds]:
        inner: Callable[[Any], Kinds | None] = partial(self._kinds, depth=depth + 1)
        if "type" in schema:
            yield _of_type(schema["type"], inner)
        if isinstance(schema.get("enum"), list):
            yield _of_values(schema["enum"])
        if "const" in schema:
            yield _of_values([schema["const"]])
        yield from (kinds for one in self._conjuncts(schema) if (kinds := inner(one)) is not None)
        for options in _options(schema):
            yield _united([kinds for one in options if (kinds := inner(one)) is not None]) or NOTHING
        if "not" in schema:
            yield _all_but(schema["not"], inner)
        if not any(key in schema for key in _STATED):
            yield next((dict.fromkeys(types) for keys, types in _IMPLIED if any(k in schema for k in keys)), ANYTHING)

    def _conjuncts(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Schemas that hold as well as this one."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key in schema:
                yield resolved(self._root, schema[key])
        if isinstance(schema.get("allOf"), list):
            yield from schema["allOf"]

    def _may_visit(self, depth: int) -> bool:
        self._remaining -= 1
        return self._remaining >= 0 and depth <= MAX_DEPTH


def _options(schema: Mapping[str, Any]) -> Iterator[list[Any]]:
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            yield schema[key]


def _of_type(declared: Any, inner: Callable[[Any], Kinds | None]) -> Kinds:
    kinds: list[Kinds] = []
    for one in declared if isinstance(declared, list) else [declared]:
        if isinstance(one, Mapping):  # drafts before 4
            kinds.append(inner(one) or ANYTHING)
            continue
        name = _TYPE_OF_NAME.get(one.strip().lower()) if isinstance(one, str) else None
        kinds.append(ANYTHING if name is None else dict.fromkeys(_NUMBERS if name == "number" else (name,)))
    return _united(kinds) or ANYTHING


def _of_values(values: list[Any]) -> Kinds:
    return _united([{kind_of(value): (value,)} for value in values]) or NOTHING


def _all_but(schema: Any, inner: Callable[[Any], Kinds | None]) -> Kinds:
    """What a `not` leaves. Only types are taken away: other keywords refuse some values of a type."""
    if schema is True or schema == {}:
        return NOTHING
    if not isinstance(schema, Mapping) or set(schema) != {"type"}:
        return ANYTHING
    refused = inner(schema) or NOTHING
    return {kind: None for kind in ANYTHING if kind not in refused}


def _united(parts: list[Kinds]) -> Kinds | None:
    """None for no parts."""
    if not parts:
        return None
    united: dict[str, tuple[Any, ...] | None] = {}
    for part in parts:
        for kind, values in part.items():
            before = united.get(kind, ())
            united[kind] = None if values is None or before is None else (*before, *values)
    return united


def _common(parts: list[Kinds]) -> Kinds:
    common = dict(ANYTHING)
    for part in parts:
        for kind in list(common):
            if kind not in part:
                del common[kind]
                continue
            before, values = common[kind], part[kind]
            if before is None or values is None:
                common[kind] = values if before is None else before
            elif not (both := tuple(value for value in before if value in values)):
                del common[kind]
            else:
                common[kind] = both
    return common
