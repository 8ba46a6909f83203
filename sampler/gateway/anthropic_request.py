"""Reads a request of Anthropic's Messages: system as text or blocks, text, tool_use, tool_result (with `is_error`), thinking.

Images are blocks of users and of results. Refused with 400: documents, and tools without a schema. Tools that Anthropic's own
servers run (`web_search_…`) are left out, and are unused.
"""

from typing import Any

from sampler.gateway.bodies import arguments_of, json_schema_format, left_out, stops_of, tool_schema
from sampler.gateway.chat_request import completed, distribution_of, tools_are_off
from sampler.gateway.exchange import ChatRequest, OutputFormat, ReceivedMessage
from sampler.gateway.fields import Fields
from sampler.gateway.image_parts import Part, content_of, joined_parts, part_of, text_of, text_of_part

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tool_choice": ({"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": False}),
    "service_tier": ("auto", "standard_only"),
}
_HIDDEN = ("thinking", "redacted_thinking")
_SHOWS_THINKING = ("enabled", "adaptive")


def read_messages(body: Any, *, counting: bool = False) -> ChatRequest:
    """`counting`: of `count_tokens`, which needs no `max_tokens`. Raises GatewayError."""
    given = Fields.of(body)
    most = given.whole("max_tokens")
    if most is None and not counting:
        given.fail("max_tokens", "is missing; expected a whole number from 1")
    system = text_of(given, "system")
    messages: list[ReceivedMessage] = [{"role": "system", "content": system}] if system else []
    failed: set[str] = set()
    received = given.objects("messages")
    if not received:
        given.fail("messages", "is empty; expected at least one message")
    for message in received:
        messages += _messages(message, failed)
    tools = [(tool, tool.text("type", "custom")) for tool in given.objects("tools")]
    schemas = [_tool(tool, kind) for tool, kind in tools if not left_out([kind])]
    for tool, kind in tools:
        if left_out([kind]):
            tool.use_all()
    thinking = given.object("thinking")
    read = ChatRequest(
        model=given.needed_text("model"),
        messages=messages,
        tools=schemas,
        max_tokens=most,
        stream=given.flag("stream"),
        shows_reasoning=thinking is not None and thinking.text("type") in _SHOWS_THINKING,
        may_call=bool(schemas) and not tools_are_off(given),
        stop=stops_of(given.texts("stop_sequences")),
        distribution=distribution_of(given),
        output_format=_output_format(given),
        failed_calls=frozenset(failed),
    )
    return completed(read, given, NEUTRAL, **left_out(kind for _, kind in tools))


def _output_format(given: Fields) -> OutputFormat | None:
    """`output_config.format`, or `output_format`, its name in the beta."""
    config = given.object("output_config")
    for path, declared in (
        ("output_config.format", None if config is None else config.object("format")),
        ("output_format", given.object("output_format")),
    ):
        if declared is not None:
            kind = declared.text("type")
            if kind != "json_schema":
                declared.fail("type", f"is {kind!r}; expected json_schema")
            return json_schema_format(declared, path)
    return None


def _tool(tool: Fields, kind: str) -> dict[str, Any]:
    name, schema = tool.needed_text("name"), tool.opaque("input_schema")
    if kind != "custom" or schema is None:
        tool.fail("", f"is {name!r} of type {kind!r}; only the client's own tools, with an input_schema")
    tool.ignore("strict", False)
    return tool_schema(name, tool.text("description"), schema)


def _messages(message: Fields, failed: set[str]) -> list[ReceivedMessage]:
    role = message.needed_text("role")
    if role not in ("user", "assistant", "system"):
        message.fail("role", f"is {role!r}; expected user or assistant")
    content = message.text_or_objects("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    return [_assistant(content)] if role == "assistant" else _received(role, content, failed)


def _assistant(blocks: list[Fields]) -> ReceivedMessage:
    texts, calls, thoughts = [], [], []
    for block in blocks:
        kind = block.text("type")
        if kind == "tool_use":
            function = {"name": block.needed_text("name"), "arguments": arguments_of(block, "input")}
            calls.append({"id": block.text("id"), "type": "function", "function": function})
        elif kind in _HIDDEN:
            thoughts.append(block.text("thinking"))
        else:
            texts.append(text_of_part(block))
    message: ReceivedMessage = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _received(role: str, blocks: list[Fields], failed: set[str]) -> list[ReceivedMessage]:
    """Results become messages of tools, in order; what is between them one of the user."""
    received: list[ReceivedMessage] = []
    read = part_of if role == "user" else text_of_part
    parts: list[Part] = []
    for block in blocks:
        if block.peek("type") != "tool_result":
            parts.append(read(block))
            continue
        block.echo("type")
        if parts:
            received.append({"role": role, "content": joined_parts(parts)})
            parts = []
        call = block.text("tool_use_id")
        if block.flag("is_error"):
            failed.add(call)
        received.append({"role": "tool", "content": content_of(block, "content"), "tool_call_id": call})
    return [*received, {"role": role, "content": joined_parts(parts)}] if parts or not received else received
