"""Reads a request of Google's `generateContent`: systemInstruction, contents (text, inlineData, thought, functionCall,
functionResponse with parts).

Names are taken as camelCase and as snake_case. A functionResponse without an id answers the first open call with its name.
Refused with 400: files, inline data that are no images, `cachedContent`, more than one candidate. Tools that Google's own
servers run are left out, and are unused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic.alias_generators import to_camel, to_snake

from sampler.gateway.bodies import arguments_of, left_out, stops_of, tool_schema
from sampler.gateway.chat_request import completed, distribution_of
from sampler.gateway.exchange import ChatRequest, OutputFormat, ReceivedMessage
from sampler.gateway.fields import Fields
from sampler.gateway.image_parts import Part, google_image, joined_parts

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequencyPenalty": (0, 0.0),
    "presencePenalty": (0, 0.0),
    "logprobs": (0,),
}
SAMPLED_BY = {"temperature": "temperature", "topP": "top_p", "topK": "top_k"}
JSON_TYPE = "application/json"
_ANSWERS = ("result", "output")  # keys under which the SDKs put a function's plain answer


@lru_cache(maxsize=4096)
def _spelling(name: str) -> Sequence[str]:
    camel = to_camel(name) if "_" in name else name
    return camel, to_snake(camel)


def read_google(body: Any, model: str, *, stream: bool) -> ChatRequest:
    """Raises GatewayError."""
    given = Fields.of(body, _spelling)
    if given.value("cachedContent"):
        given.fail("cachedContent", "is set, and nothing is stored here; send the whole contents each time")
    generation = given.object("generationConfig") or Fields({}, spelling=_spelling)
    if generation.whole("candidateCount") not in (None, 1):
        generation.fail("candidateCount", "is above 1; send 1")
    thinking = generation.object("thinkingConfig")
    tools = given.objects("tools")
    schemas = [schema for tool in tools for schema in _tools(tool)]
    for name, values in NEUTRAL.items():
        generation.ignore(name, *values)
    reader = _Contents()
    read = ChatRequest(
        model=model.removeprefix("models/"),
        messages=reader.messages(given),
        tools=schemas,
        max_tokens=generation.whole("maxOutputTokens"),
        stream=stream,
        shows_reasoning=thinking is not None and thinking.flag("includeThoughts"),
        may_call=bool(schemas) and not _is_off(given),
        wants_logprobs=generation.flag("responseLogprobs"),
        stop=stops_of(generation.texts("stopSequences")),
        distribution=distribution_of(generation, SAMPLED_BY),
        output_format=_output_format(generation),
        failed_calls=frozenset(reader.failed),
    )
    kinds = [to_snake(name) for tool in tools for name in tool.names]
    return completed(read, given, {}, **left_out(kinds))


def _is_off(given: Fields) -> bool:
    """Whether the reply's calls are text. Any other mode but AUTO stays unused."""
    config = given.object("toolConfig")
    calling = None if config is None else config.object("functionCallingConfig")
    if calling is None:
        return False
    calling.ignore("mode", "AUTO", "MODE_UNSPECIFIED")
    if calling.peek("mode") != "NONE":
        return False
    calling.echo("mode")
    return True


def _output_format(generation: Fields) -> OutputFormat | None:
    schema = generation.opaque("responseJsonSchema")
    older = generation.opaque("responseSchema")
    kind = generation.peek("responseMimeType")
    if kind in (JSON_TYPE, "text/plain"):
        generation.echo("responseMimeType")
    if schema is not None:
        return OutputFormat(generation.path_of("responseJsonSchema"), schema)
    if older is not None:
        return OutputFormat(generation.path_of("responseSchema"), _json_schema(older))
    return OutputFormat(generation.path_of("responseMimeType")) if kind == JSON_TYPE else None


def _tools(tool: Fields) -> Iterator[dict[str, Any]]:
    for name in tool.names:
        if left_out([to_snake(name)]):
            tool.echo(name)
        elif name != "functionDeclarations" and tool.value(name):
            tool.fail(name, "is no functionDeclarations; only these are supported")
    for one in tool.objects("functionDeclarations"):
        schema, older = one.opaque("parametersJsonSchema"), one.opaque("parameters")
        yield tool_schema(one.needed_text("name"), one.text("description"), schema or (older and _json_schema(older)))


def _json_schema(schema: Any) -> Any:
    """Google's types are in capitals (`STRING`)."""
    if isinstance(schema, list):
        return [_json_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _json_schema(value)
        for key, value in schema.items()
    }


class _Contents:
    """Translates contents to messages. `failed`: ids of calls whose responses are errors."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self._open: list[tuple[str, str]] = []  # id and name of calls without a response
        self._calls = 0

    def messages(self, given: Fields) -> list[ReceivedMessage]:
        received: list[ReceivedMessage] = []
        system = given.object("systemInstruction")
        if system is not None:
            system.echo("role")
            received.append({"role": "system", "content": "\n".join(_text(part) for part in system.objects("parts"))})
        contents = given.objects("contents")
        if not contents:
            given.fail("contents", "is empty; expected at least one content")
        for content in contents:
            role = content.text("role", "user")
            if role not in ("user", "model", "function"):
                content.fail("role", f"is {role!r}; expected user or model")
            parts = content.objects("parts")
            received += [self._reply(parts)] if role == "model" else self._received(parts)
        return received

    def _reply(self, parts: list[Fields]) -> ReceivedMessage:
        texts, thoughts, calls = [], [], []
        for part in parts:
            call = part.object("functionCall")
            if call is not None:
                calls.append(self._call(call))
            elif part.flag("thought"):
                thoughts.append(part.text("text"))
            else:
                texts.append(_text(part))
        message: ReceivedMessage = {"role": "assistant", "content": "".join(texts)}
        if any(thoughts):
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        return message

    def _call(self, call: Fields) -> dict[str, Any]:
        self._calls += 1
        name, function = call.text("id") or f"call-{self._calls}", call.needed_text("name")
        self._open.append((name, function))
        arguments = arguments_of(call, "args")
        return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}

    def _received(self, parts: list[Fields]) -> list[ReceivedMessage]:
        """Responses become messages of tools, in order; what is between them one of the user."""
        received: list[ReceivedMessage] = []
        shown: list[Part] = []
        for part in parts:
            response = part.object("functionResponse")
            if response is None:
                shown.append(google_image(part) or _text(part))
                continue
            if shown:
                received.append({"role": "user", "content": joined_parts(shown)})
                shown = []
            received.append(self._result(response))
        return [*received, {"role": "user", "content": joined_parts(shown)}] if shown or not received else received

    def _result(self, response: Fields) -> ReceivedMessage:
        given, function = response.text("id"), response.needed_text("name")
        matching = [one for one in self._open if given in ("", one[0]) and one[1] == function]
        if matching:
            self._open.remove(matching[0])
        name = given or (matching[0][0] if matching else "")
        answer = response.opaque("response") or {}
        if "error" in answer:
            self.failed.add(name)
        value = next((answer[key] for key in _ANSWERS if set(answer) == {key}), answer)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        shown = [google_image(part) or _text(part) for part in response.objects("parts")]
        content = joined_parts([text, *shown] if answer or not shown else shown)
        return {"role": "tool", "name": function, "content": content, "tool_call_id": name}


def _text(part: Fields) -> str:
    if part.peek("text") is None:
        kind = next(iter(part.names), "empty")
        part.fail("", f"is {kind!r}; only text, images and functions are supported")
    return part.text("text")
