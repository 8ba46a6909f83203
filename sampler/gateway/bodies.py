"""What the dialects' readers of bodies share: validation, tools, and content as text."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sampler.gateway.exchange import GatewayError, Problem

ModelT = TypeVar("ModelT", bound=BaseModel)
VENDOR_TOOLS = (  # kinds of tools that a vendor's own servers run, by their beginnings
    *("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution", "image_generation", "mcp"),
    *("tool_search", "google_search", "google_maps", "url_context", "enterprise_web_search"),
)
_NO_PARAMETERS = {"type": "object", "properties": {}}


def validated(model: type[ModelT], body: Any) -> ModelT:
    """Raises GatewayError with the first problem and the field's path."""
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise GatewayError(Problem.INVALID, f"{where}: {first['msg']}") from exc


def tool_schema(name: str, description: str | None = None, parameters: Any = None, **_: Any) -> dict[str, Any]:
    """A tool as chat templates take it. Other fields, such as `strict`, are left out, so equal tools have equal schemas."""
    given = {"name": name, "description": description or "", "parameters": parameters or _NO_PARAMETERS}
    return {"type": "function", "function": given}


def text_of_parts(content: Any, where: str) -> str:
    """Null is an empty text, and a list of text parts is the text of all."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for at, part in enumerate(content):
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise GatewayError(Problem.INVALID, f"{where}[{at}] is {kind!r}; only text is supported")
        texts.append(text)
    return "\n".join(texts)


def left_out(kinds: Iterable[str | None]) -> dict[str, str]:
    """The tools among these kinds that only a vendor could run, as entries of `ChatRequest.sampling`: the model is not told of
    them. `kinds` are written with _."""
    found = ((kind, beginning) for kind in kinds if kind for beginning in VENDOR_TOOLS if kind.startswith(beginning))
    return {f"tool_{beginning}": kind for kind, beginning in found}
