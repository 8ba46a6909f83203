"""Reads a request of OpenAI's Responses: `input` as text or items (messages, function_call, function_call_output, reasoning).

Refused with 400: `previous_response_id`, `conversation` and `prompt` (nothing is stored here: send the whole input, as with
`store: false`), files, and other kinds of tools than functions and namespaces of them. Tools that OpenAI's own servers run
(`web_search`, …) are left out, and are unused.
"""

from collections.abc import Iterator
from typing import Any

from sampler.gateway.bodies import arguments_of, json_schema_format, left_out, tool_schema
from sampler.gateway.chat_request import ROLE_NAMES, completed, distribution_of, tools_are_off
from sampler.gateway.exchange import ChatRequest, OutputFormat, ReceivedMessage
from sampler.gateway.fields import Fields
from sampler.gateway.image_parts import content_of, text_of
from shared.documents.content import IMAGE_ROLES

IN_NAMESPACE = "."
LOGPROBS = "message.output_text.logprobs"  # in `include`
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_UNKNOWN_HERE = ("previous_response_id", "conversation", "prompt")
_ROLES = ("system", "user", "assistant")


def read_responses(body: Any) -> ChatRequest:
    """Raises GatewayError."""
    given = Fields.of(body)
    for name in _UNKNOWN_HERE:
        if given.value(name):
            given.fail(name, "is set, and nothing is stored here; send the whole input each time")
    if given.flag("background"):
        given.fail("background", "is true; only requests that are answered at once")
    messages: list[ReceivedMessage] = []
    instructions = given.text("instructions")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    given_input = given.text_or_objects("input")
    if not given_input:
        given.fail("input", "is empty; expected a text or a list of items")
    tools = given.objects("tools")
    kinds = [tool.needed_text("type") for tool in tools]
    schemas = [schema for tool, kind in zip(tools, kinds, strict=True) for schema in _tools(tool, kind)]
    read = ChatRequest(
        model=given.needed_text("model"),
        messages=[
            *messages,
            *([{"role": "user", "content": given_input}] if isinstance(given_input, str) else _messages(given_input)),
        ],
        tools=schemas,
        max_tokens=given.whole("max_output_tokens"),
        stream=given.flag("stream"),
        may_call=bool(schemas) and not tools_are_off(given),
        wants_logprobs=_wants_logprobs(given),
        distribution=distribution_of(given),
        output_format=_output_format(given),
        namespaces=frozenset(tool.text("name") for tool, kind in zip(tools, kinds, strict=True) if kind == "namespace"),
    )
    return completed(read, given, NEUTRAL, **left_out(kinds))


def _wants_logprobs(given: Fields) -> bool:
    include = given.texts("include")
    given.leave("include", [one for one in include if one != LOGPROBS])
    return LOGPROBS in include


def _output_format(given: Fields) -> OutputFormat | None:
    text = given.object("text")
    declared = None if text is None else text.object("format")
    kind = "text" if declared is None else declared.text("type", "text")
    if declared is None or kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat("text.format")
    if kind != "json_schema":
        declared.fail("type", f"is {kind!r}; expected text, json_object or json_schema")
    declared.ignore("strict", False)
    return json_schema_format(declared, "text.format")


def _tools(tool: Fields, kind: str, space: str = "") -> Iterator[dict[str, Any]]:
    if kind == "function":
        tool.ignore("strict", False)
        name = space + tool.needed_text("name")
        yield tool_schema(name, tool.text("description"), tool.opaque("parameters"))
    elif kind == "namespace" and not space:
        name = tool.needed_text("name")
        for one in tool.objects("tools"):
            yield from _tools(one, one.needed_text("type"), f"{name}{IN_NAMESPACE}")
    elif left_out([kind]):
        tool.use_all()
    else:
        tool.fail("type", f"is {kind!r}; only functions, which the client runs")


def _messages(items: list[Fields]) -> list[ReceivedMessage]:
    """Consecutive items of one reply (reasoning, text, calls) become one message of the assistant."""
    received: list[ReceivedMessage] = []
    reply: ReceivedMessage | None = None
    for item in items:
        kind = item.text("type", "message")
        item.echo("id", "status")
        if kind == "function_call_output":
            content = content_of(item, "output")
            received.append({"role": "tool", "content": content, "tool_call_id": item.text("call_id")})
            reply = None
        elif kind == "message" and item.peek("role") != "assistant":
            received.append(_message(item))
            reply = None
        else:
            if reply is None or (kind == "reasoning" and len(reply) > 1):
                reply = {"role": "assistant"}
                received.append(reply)
            _add(reply, item, kind)
    return [{"content": "", **message} for message in received]


def _message(item: Fields) -> ReceivedMessage:
    given = item.text("role")
    role = ROLE_NAMES.get(given, given)
    if role not in _ROLES:
        item.fail("role", f"is {given!r}; expected one of developer, {', '.join(_ROLES)}")
    read = content_of if role in IMAGE_ROLES else text_of
    return {"role": role, "content": read(item, "content")}


def _add(reply: ReceivedMessage, item: Fields, kind: str) -> None:
    if kind == "message":
        item.echo("role")
        reply["content"] = "\n".join(filter(None, (reply.get("content"), text_of(item, "content"))))
    elif kind == "reasoning":
        content, summary = text_of(item, "content"), text_of(item, "summary")
        text = content or summary
        if text:
            reply["reasoning_content"] = text
    elif kind == "function_call":
        arguments = arguments_of(item, "arguments")
        space = item.text("namespace")
        name = f"{space}{IN_NAMESPACE if space else ''}{item.needed_text('name')}"
        function = {"name": name, "arguments": arguments}
        reply.setdefault("tool_calls", []).append(
            {"id": item.text("call_id"), "type": "function", "function": function}
        )
    else:
        item.fail("", f"is {kind!r}; expected messages, function calls and their outputs")
