"""Parts of conversations with images and calls of tools, as supervised training reads them."""

import base64
from typing import Any


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "base64": base64.b64encode(data).decode()}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def shown(content: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content}


def described_tool(name: str, **parameters: str) -> dict[str, Any]:
    """`parameters`: the JSON type of each."""
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    described = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": described}}
