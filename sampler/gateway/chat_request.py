"""Reads a request of OpenAI's Chat Completions. Refused with 400: other parts than texts and images, `n` above 1, the deprecated
`functions`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sampler.gateway.bodies import arguments_of, json_schema_format, stops_of, tool_schema
from sampler.gateway.exchange import ChatRequest, GatewayError, OutputFormat, Problem, ReceivedMessage
from sampler.gateway.fields import Fields
from sampler.gateway.image_parts import content_of, text_of
from shared.documents.content import IMAGE_ROLES
from shared.names import ROLES

ROLE_NAMES = {"developer": "system"}
SAMPLED_BY = {name: name for name in ("temperature", "top_p", "top_k", "min_p")}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # values that change nothing
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "top_logprobs": (0,),
    "store": (False,),
    "service_tier": ("auto", "default"),
}


def read_chat(body: Any) -> ChatRequest:
    """Raises GatewayError."""
    chat = Fields.of(body)
    if chat.whole("n") not in (None, 1) or chat.value("functions"):
        raise GatewayError(Problem.INVALID, "n above 1 and functions are not supported; send n=1, and tools")
    messages = chat.objects("messages")
    if not messages:
        chat.fail("messages", "is empty; expected at least one message")
    most, older = chat.whole("max_completion_tokens"), chat.whole("max_tokens")
    options = chat.object("stream_options")
    tools = [_tool(tool) for tool in chat.objects("tools")]
    read = ChatRequest(
        model=chat.needed_text("model"),
        messages=[_message(message) for message in messages],
        tools=tools,
        max_tokens=most or older,
        stream=chat.flag("stream"),
        stream_usage=options is not None and options.flag("include_usage"),
        may_call=bool(tools) and not tools_are_off(chat),
        wants_logprobs=chat.flag("logprobs"),
        stop=stops_of(chat.texts("stop")),
        distribution=distribution_of(chat),
        output_format=_output_format(chat),
    )
    return completed(read, chat, NEUTRAL)


def distribution_of(fields: Fields, names: Mapping[str, str] = SAMPLED_BY) -> dict[tuple[str, str], float]:
    """`names`: {member: our name of it}."""
    given = {(fields.path_of(name), ours): fields.number(name) for name, ours in names.items()}
    return {place: float(value) for place, value in given.items() if value is not None}


def tools_are_off(fields: Fields) -> bool:
    """`tool_choice: none`: the reply's calls are text. Any other choice but `auto` stays unused."""
    choice = fields.peek("tool_choice")
    if choice in ("none", {"type": "none"}):
        fields.value("tool_choice")
        return True
    return False


def completed(request: ChatRequest, fields: Fields, neutral: Mapping[str, tuple[Any, ...]], **more: Any) -> ChatRequest:
    """With the reply's beginning, if the last message is one, and what is unused: `fields` as far as they were read; `more`:
    members that are unused in another sense, such as a vendor's tools."""
    for name, values in neutral.items():
        fields.ignore(name, *values)
    unused = fields.unused() | more
    last = request.messages[-1] if request.messages else {}
    if last.get("role") != "assistant" or not last["content"] or last.get("tool_calls"):
        return replace(request, unused=unused)
    return replace(request, unused=unused, prefix=last["content"], messages=request.messages[:-1])


def _tool(tool: Fields) -> dict[str, Any]:
    kind = tool.text("type", "function")
    if kind != "function":
        tool.fail("type", f"is {kind!r}; expected function")
    function = tool.object("function")
    if function is None:
        tool.fail("function", "is missing; expected an object with a name")
    function.ignore("strict", False)
    return tool_schema(function.needed_text("name"), function.text("description"), function.opaque("parameters"))


def _message(message: Fields) -> ReceivedMessage:
    given = message.needed_text("role")
    role = ROLE_NAMES.get(given, given)
    if role not in ROLES:
        message.fail("role", f"is {given!r}; expected one of developer, {', '.join(ROLES)}")
    read = content_of if role in IMAGE_ROLES else text_of
    received: ReceivedMessage = {"role": role, "content": read(message, "content")}
    if role == "tool":
        received["tool_call_id"] = message.text("tool_call_id")
    name = message.text("name")
    if name:
        received["name"] = name
    if role == "assistant":
        reasoning = message.text("reasoning_content")
        if reasoning:
            received["reasoning_content"] = reasoning
        calls = [_call(call) for call in message.objects("tool_calls")]
        if calls:
            received["tool_calls"] = calls
    return received


def _call(call: Fields) -> dict[str, Any]:
    call.echo("type", "index")
    function = call.object("function")
    if function is None:
        call.fail("function", "is missing; expected an object with a name")
    value = {"name": function.needed_text("name"), "arguments": arguments_of(function, "arguments")}
    return {"id": call.text("id"), "type": "function", "function": value}


def _output_format(chat: Fields) -> OutputFormat | None:
    declared = chat.object("response_format")
    kind = "text" if declared is None else declared.text("type", "text")
    if declared is None or kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat("response_format")
    if kind != "json_schema":
        declared.fail("type", f"is {kind!r}; expected text, json_object or json_schema")
    inner = declared.object("json_schema")
    if inner is None:
        declared.fail("json_schema", "is missing; expected an object with a schema")
    inner.ignore("strict", False)
    return json_schema_format(inner, "response_format")
