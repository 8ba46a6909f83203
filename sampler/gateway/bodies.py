"""What the dialects' readers of bodies share: bounds, validation, tools, calls, and the output's form."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sampler.gateway.exchange import GatewayError, OutputFormat, Problem
from sampler.gateway.fields import Fields
from shared.outside_values import MAX_DEPTH, problem_of

ModelT = TypeVar("ModelT", bound=BaseModel)
VENDOR_TOOLS = (  # kinds of tools that a vendor's own servers run, by their beginnings
    *("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution", "image_generation", "mcp"),
    *("tool_search", "google_search", "google_maps", "url_context", "enterprise_web_search"),
)
MAX_BODY_DEPTH = MAX_DEPTH + 10  # a call's arguments may have MAX_DEPTH levels, some levels inside a body
MAX_BODY_BYTES = 32 * 1024 * 1024
LEAST_BODY_BYTES = 2 * 1024 * 1024
BYTES_PER_TOKEN = 128  # with JSON's own; a text has 4, and clients send reasoning that templates leave out
_NO_PARAMETERS = {"type": "object", "properties": {}}


def most_body_bytes(max_tokens: int, *, sees: bool = False) -> int:
    """A larger body has no place in a context of so many tokens, and is not read. `sees`: the model reads images, of which a
    token stands for any number of bytes."""
    return MAX_BODY_BYTES if sees else min(MAX_BODY_BYTES, max(LEAST_BODY_BYTES, BYTES_PER_TOKEN * max_tokens))


def plain_json(text: bytes | bytearray, *, with_nul: bool = False) -> Any:
    """A body as a value that can be stored, encoded and sent. `with_nul`: it has a conversation, whose texts may contain U+0000.
    Raises GatewayError with the path of what cannot."""
    try:
        parsed = json.loads(text)
    except ValueError as exc:
        raise GatewayError(Problem.INVALID, f"the body is not JSON: {exc}") from exc
    except RecursionError as exc:
        raise GatewayError(Problem.INVALID, f"the body is nested more than {MAX_BODY_DEPTH} levels deep") from exc
    problem = problem_of(parsed, most_depth=MAX_BODY_DEPTH, with_nul=with_nul)
    if problem is not None:
        raise GatewayError(Problem.INVALID, f"{problem.path or 'the body'} {problem.what}")
    return parsed


def validated(model: type[ModelT], body: Any) -> ModelT:
    """Raises GatewayError with the first problem and the field's path."""
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise GatewayError(Problem.INVALID, f"{where}: {first['msg']}") from exc


def tool_schema(name: str, description: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A tool as chat templates take it, without other members, so equal tools have equal schemas."""
    function = {"name": name, "description": description, "parameters": parameters or _NO_PARAMETERS}
    return {"type": "function", "function": function}


def arguments_of(fields: Fields, name: str) -> Any:
    """The arguments of a call as an object. A client may return a text that is not JSON, which stays a text."""
    given = fields.value(name)
    if isinstance(given, Mapping):
        _require_storable(fields, name, given)
        return dict(given)
    if given is not None and not isinstance(given, str):
        fields.fail(name, "is neither an object nor a text of JSON")
    try:
        value = json.loads(given or "{}")
    except ValueError:
        return given
    except RecursionError:
        fields.fail(name, f"is nested more than {MAX_DEPTH} levels deep")
    if not isinstance(value, dict):
        return given
    _require_storable(fields, name, value)
    return value


def _require_storable(fields: Fields, name: str, value: Any) -> None:
    problem = problem_of(value)
    if problem is not None:
        where = f"{name}.{problem.path}" if problem.path else name
        fields.fail(where, problem.what)


def json_schema_format(fields: Fields, path: str, *, name: str = "schema") -> OutputFormat:
    """`name`: of the member with the schema."""
    schema = fields.opaque(name)
    if schema is None:
        fields.fail(name, "is missing; expected a JSON schema")
    return OutputFormat(path, schema, fields.text("name"), fields.text("description"))


def left_out(kinds: Iterable[str]) -> dict[str, Any]:
    """The tools among these kinds that only a vendor could run, as unused members: the model is not told of them. `kinds` are
    written with _."""
    vendor_kinds = ((kind, beginning) for kind in kinds for beginning in VENDOR_TOOLS if kind.startswith(beginning))
    return {f"tool_{beginning}": kind for kind, beginning in vendor_kinds}


def stops_of(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
