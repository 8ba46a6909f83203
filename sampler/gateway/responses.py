"""Answers as OpenAI's Responses (`POST /v1/responses`): a pure translation, like `chat_completions`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sampler.gateway.chat_completions import chat_error, token_logprob
from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    Event,
    GatewayError,
    RepliedCall,
    ReplyHead,
    ReplyWriter,
)
from sampler.gateway.responses_request import IN_NAMESPACE


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
        self._logprobs: list[dict[str, Any]] = []  # known when the reply is whole

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
        self._logprobs = _logprobs(reply)
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
            part["logprobs"] = self._logprobs
            yield self._delta("output_text.done", text=text, logprobs=self._logprobs)
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
    items = [_reasoning_item(reply.id, reply.reasoning)] if reply.reasoning else []
    if reply.content or not reply.calls:
        items.append(_message_item(reply.id, reply.content, "completed", _logprobs(reply)))
    return [*items, *(_call_item(reply.id, number, call, request) for number, call in enumerate(reply.calls))]


def _logprobs(reply: ChatReply) -> list[dict[str, Any]]:
    return [token_logprob(token) for token in reply.tokens or ()]


def _reasoning_item(name: str, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content}


def _message_item(name: str, text: str, status: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}]
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": content}


def _call_item(name: str, number: int, call: RepliedCall, request: ChatRequest) -> dict[str, Any]:
    space, _, function = call.name.partition(IN_NAMESPACE)
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
