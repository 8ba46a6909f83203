"""OpenAI's Responses (`POST /v1/responses`): a pure translation, like `chat_completions`.

Taken: `input` as text or items (messages, function_call, function_call_output, reasoning), `instructions`, function tools,
namespaces of them (the model sees `NAMESPACE.NAME`), parallel calls, streams, usage. Refused with 400: `previous_response_id` and
`conversation` (nothing is stored here: send the whole input, as with `store: false`), images and files, and other kinds of tools.
Tools that OpenAI's own servers run (`web_search`, …) are left out, and counted like parameters.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from sampler.gateway.bodies import left_out, text_of_parts, tool_schema, validated
from sampler.gateway.chat_completions import ROLE_NAMES, chat_error
from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    Event,
    GatewayError,
    Problem,
    ReceivedMessage,
    RepliedCall,
    ReplyHead,
    ReplyWriter,
    arguments_of,
    not_neutral,
)

_NEUTRAL: Mapping[str, list[Any]] = {
    "temperature": [],
    "top_p": [1],
    "text": [{}, {"format": {"type": "text"}}],
    "tool_choice": ["auto"],
    "parallel_tool_calls": [True],
}
_UNKNOWN_HERE = ("previous_response_id", "conversation", "prompt")
_ROLES = ("system", "user", "assistant")
_IN_NAMESPACE = "."
ItemOf = tuple[str, Mapping[str, Any]]  # its place in the request, and the item


class _ResponsesTool(BaseModel):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list["_ResponsesTool"] | None = None  # of a namespace


class _ResponsesBody(BaseModel, extra="allow"):
    model: str
    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    tools: list[_ResponsesTool] | None = None
    max_output_tokens: int | None = Field(None, gt=0)
    stream: bool | None = None
    background: bool | None = None


def read_responses(body: Any) -> ChatRequest:
    """Raises GatewayError."""
    given = validated(_ResponsesBody, body)
    extra = given.model_extra or {}
    if named := [name for name in _UNKNOWN_HERE if extra.get(name)]:
        raise GatewayError(Problem.INVALID, f"{named[0]}: nothing is stored here; send the whole input each time")
    if given.background:
        raise GatewayError(Problem.INVALID, "background: only requests that are answered at once")
    messages: list[ReceivedMessage] = []
    if given.instructions:
        messages.append({"role": "system", "content": given.instructions})
    items = [{"role": "user", "content": given.input}] if isinstance(given.input, str) else given.input
    return ChatRequest(
        model=given.model,
        messages=[*messages, *_messages([(f"input[{at}]", item) for at, item in enumerate(items)])],
        tools=[schema for tool in given.tools or () for schema in _tools(tool)],
        max_tokens=given.max_output_tokens,
        stream=bool(given.stream),
        sampling=not_neutral(extra, _NEUTRAL) | left_out(tool.type for tool in given.tools or ()),
        namespaces=frozenset(tool.name for tool in given.tools or () if tool.type == "namespace" and tool.name),
    )


def _tools(tool: _ResponsesTool, space: str = "") -> Iterator[dict[str, Any]]:
    if tool.type == "function" and tool.name is not None:
        yield tool_schema(space + tool.name, tool.description, tool.parameters)
    elif tool.type == "namespace" and tool.name is not None and not space:
        for one in tool.tools or ():
            yield from _tools(one, f"{tool.name}{_IN_NAMESPACE}")
    elif not left_out([tool.type]):
        raise GatewayError(Problem.INVALID, f"tool of type {tool.type!r}: only functions, which the client runs")


def _messages(items: list[ItemOf]) -> list[ReceivedMessage]:
    """Consecutive items of one reply (reasoning, text, calls) become one message of the assistant."""
    found: list[ReceivedMessage] = []
    reply: ReceivedMessage | None = None
    for where, item in items:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            content = text_of_parts(item.get("output"), f"{where}.output")
            found.append({"role": "tool", "content": content, "tool_call_id": str(item.get("call_id", ""))})
            reply = None
        elif kind == "message" and item.get("role") != "assistant":
            found.append(_message(where, item))
            reply = None
        else:
            if reply is None or (kind == "reasoning" and len(reply) > 1):
                reply = {"role": "assistant"}
                found.append(reply)
            _add(reply, where, item, kind)
    return [{"content": "", **message} for message in found]


def _message(where: str, item: Mapping[str, Any]) -> ReceivedMessage:
    role = ROLE_NAMES.get(str(item.get("role")), item.get("role"))
    if role not in _ROLES:
        raise GatewayError(Problem.INVALID, f"{where}.role is {role!r}; expected one of developer, {', '.join(_ROLES)}")
    return {"role": role, "content": text_of_parts(item.get("content"), f"{where}.content")}


def _add(reply: ReceivedMessage, where: str, item: Mapping[str, Any], kind: str) -> None:
    if kind == "message":
        text = text_of_parts(item.get("content"), f"{where}.content")
        reply["content"] = "\n".join(filter(None, (reply.get("content"), text)))
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or ()
        if text := text_of_parts(parts, f"{where}.content"):
            reply["reasoning_content"] = text
    elif kind == "function_call":
        arguments = arguments_of(f"{where}.arguments", item.get("arguments", "{}"))
        space = f"{item['namespace']}{_IN_NAMESPACE}" if item.get("namespace") else ""
        function = {"name": f"{space}{item.get('name')}", "arguments": arguments}
        call = {"id": str(item.get("call_id", "")), "type": "function", "function": function}
        reply.setdefault("tool_calls", []).append(call)
    else:
        raise GatewayError(Problem.INVALID, f"{where} is {kind!r}; expected messages, function calls and their outputs")


# ---------------------------------------------------------------------- answers


def responses_reply(reply: ChatReply, request: ChatRequest) -> dict[str, Any]:
    return _response(reply, request, _items(reply, request), "incomplete" if reply.is_cut else "completed", reply)


def responses_error_event(error: GatewayError) -> Event:
    inner = chat_error(error)[1]["error"]
    return "error", {
        "type": "error",
        "sequence_number": 0,
        **{name: inner[name] for name in ("code", "message", "param")},
    }


class ResponsesWriter(ReplyWriter):
    """The same reply as events. The name of an event is its `type`; each has its number. Items come one after the other."""

    def __init__(self, request: ChatRequest) -> None:
        super().__init__(request)
        self._number = 0
        self._done: list[dict[str, Any]] = []  # items
        self._open: dict[str, Any] | None = None  # the item of text that is being written
        self._text = ""

    def begin(self, head: ReplyHead) -> Iterator[Event]:
        self._head = head
        response = _response(head, self.request, [], "in_progress")
        yield self._event("created", response=response)
        yield self._event("in_progress", response=response)

    def more_reasoning(self, text: str) -> Iterator[Event]:
        yield from self._in_item(_reasoning_item(self._head.id, ""))
        yield self._delta("reasoning_text.delta", delta=text)
        self._text += text

    def more_content(self, text: str) -> Iterator[Event]:
        yield from self._in_item(_message_item(self._head.id, "", "in_progress"))
        yield self._delta("output_text.delta", delta=text, logprobs=[])
        self._text += text

    def end(self, reply: ChatReply) -> Iterator[Event]:
        if not reply.content and not reply.calls:
            yield from self._in_item(_message_item(reply.id, "", "in_progress"))
        yield from self._closed()
        for number, call in enumerate(reply.calls):
            item = _call_item(reply.id, number, call, self.request)
            yield self._event(
                "output_item.added", item={**item, "arguments": "", "status": "in_progress"}, **self._at()
            )
            place = {"item_id": item["id"], **self._at()}
            yield self._event("function_call_arguments.delta", delta=call.as_json, **place)
            yield self._event("function_call_arguments.done", arguments=call.as_json, name=item["name"], **place)
            yield from self._finished(item)
        kind = "incomplete" if reply.is_cut else "completed"
        yield self._event(kind, response=_response(reply, self.request, self._done, kind, reply))

    def _in_item(self, item: dict[str, Any]) -> Iterator[Event]:
        if self._open is not None and self._open["type"] == item["type"]:
            return
        yield from self._closed()
        self._open = item
        empty = {**item, "content": []}
        yield self._event("output_item.added", item=empty, **self._at())
        yield self._delta("content_part.added", part=item["content"][0])

    def _closed(self) -> Iterator[Event]:
        if self._open is None:
            return
        item, text = self._open, self._text
        part = {**item["content"][0], "text": text}
        if item["type"] == "message":
            yield self._delta("output_text.done", text=text, logprobs=[])
        else:
            yield self._delta("reasoning_text.done", text=text)
        yield self._delta("content_part.done", part=part)
        self._open, self._text = None, ""
        yield from self._finished({**item, "content": [part], "status": "completed"})

    def _finished(self, item: dict[str, Any]) -> Iterator[Event]:
        yield self._event("output_item.done", item=item, **self._at())
        self._done.append(item)

    def _at(self) -> dict[str, int]:
        return {"output_index": len(self._done)}

    def _delta(self, kind: str, **values: Any) -> Event:
        assert self._open is not None, "inside an item"
        return self._event(kind, item_id=self._open["id"], content_index=0, **self._at(), **values)

    def _event(self, kind: str, **values: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return f"response.{kind}", {"type": f"response.{kind}", "sequence_number": number, **values}


def _response(
    head: ReplyHead, request: ChatRequest, items: list[dict[str, Any]], status: str, reply: ChatReply | None = None
) -> dict[str, Any]:
    tools = [{"type": "function", "strict": None, **tool["function"]} for tool in request.tools]
    return {
        "id": f"resp_{head.id}",
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": tools,
        "previous_response_id": None,
        "store": False,
        "usage": None if reply is None else _usage(reply),
    }


def _items(reply: ChatReply, request: ChatRequest) -> list[dict[str, Any]]:
    found = [_reasoning_item(reply.id, reply.reasoning)] if reply.reasoning else []
    if reply.content or not reply.calls:
        found.append(_message_item(reply.id, reply.content, "completed"))
    return [*found, *(_call_item(reply.id, number, call, request) for number, call in enumerate(reply.calls))]


def _reasoning_item(name: str, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content}


def _message_item(name: str, text: str, status: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": content}


def _call_item(name: str, number: int, call: RepliedCall, request: ChatRequest) -> dict[str, Any]:
    space, _, function = call.name.partition(_IN_NAMESPACE)
    if space not in request.namespaces:
        space, function = "", call.name
    return {
        "type": "function_call",
        "id": f"fc_{name}_{number}",
        "call_id": call.id,
        "name": function,
        **({"namespace": space} if space else {}),
        "arguments": call.as_json,
        "status": "completed",
    }


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
