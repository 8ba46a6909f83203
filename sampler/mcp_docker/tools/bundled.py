"""A bundled tool: a function with checked arguments, and what it answers."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sampler.mcp_docker.tools.protocol import JsonObject, text_result


class ToolArguments(BaseModel):
    """Of one tool; its fields' descriptions are what the model reads."""

    model_config = ConfigDict(extra="forbid")
    json_schema: ClassVar[JsonObject]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Once, when the module is loaded: a fork has it."""
        cls.json_schema = {key: value for key, value in cls.model_json_schema().items() if key != "description"}


ToolArguments.__pydantic_init_subclass__()


class ToolRefusal(Exception):
    """The call has no result; the message tells the model why."""


@dataclass(frozen=True, slots=True)
class BundledTool:
    """`function` takes the checked arguments and returns text. A plain function runs in a thread, unless it is `quick`."""

    name: str
    description: str
    arguments: type[ToolArguments]
    function: Callable[[Any], Any]
    quick: bool = False  # at most some milliseconds, in which the process does nothing else

    @property
    def listed(self) -> JsonObject:
        return {"name": self.name, "description": self.description, "inputSchema": self.arguments.json_schema}

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    async def result(self, values: JsonObject) -> JsonObject:
        if not self.is_async:
            return self.plain_result(values)
        try:
            return text_result(await self.function(self.arguments.model_validate(values)))
        except ValidationError as exc:
            return _wrong_arguments(exc)
        except ToolRefusal as exc:
            return text_result(str(exc), is_error=True)

    def plain_result(self, values: JsonObject) -> JsonObject:
        try:
            return text_result(self.function(self.arguments.model_validate(values)))
        except ValidationError as exc:
            return _wrong_arguments(exc)
        except ToolRefusal as exc:
            return text_result(str(exc), is_error=True)


def _wrong_arguments(exc: ValidationError) -> JsonObject:
    wrong = exc.errors(include_url=False, include_input=False)[0]
    return text_result(f"{'.'.join(map(str, wrong['loc'])) or 'arguments'}: {wrong['msg']}", is_error=True)


class BundledServer:
    """The tools of one process."""

    def __init__(self, name: str, tools: Sequence[BundledTool]) -> None:
        self.name = name
        self.tools = {tool.name: tool for tool in tools}


def server_of(name: str, tools: Sequence[BundledTool]) -> BundledServer:
    return BundledServer(name, tools)
