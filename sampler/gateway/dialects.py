"""The dialects by path. Each is a set of pure functions; the server knows them by this table alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sampler.gateway.anthropic_messages import MessagesWriter, messages_error, messages_reply
from sampler.gateway.anthropic_request import read_messages
from sampler.gateway.chat_completions import ChatWriter, chat_error, chat_reply
from sampler.gateway.chat_request import read_chat
from sampler.gateway.exchange import ChatReply, ChatRequest, GatewayError, ReplyWriter
from sampler.gateway.google_generate import GoogleWriter, google_error, google_reply
from sampler.gateway.google_request import read_google
from sampler.gateway.responses import ResponsesWriter, responses_error_event, responses_reply
from sampler.gateway.responses_request import read_responses

COMMENT = ": keep-alive\n\n"  # which readers of server-sent events skip
GOOGLE_PATHS = ("/v1beta/models/{model}:", "/v1/models/{model}:")  # the SDK uses the second, other clients the first


@dataclass(frozen=True, slots=True)
class Dialect:
    """`read`: of a body, and of the model that the path names, if it does. `writer`: of one reply as a stream. `error_event`:
    name and data of an error in a stream. `keep_alive`: sent while a reply is sampled."""

    read: Callable[[Any, str], ChatRequest]
    reply: Callable[[ChatReply, ChatRequest], dict[str, Any]]
    writer: Callable[[ChatRequest], ReplyWriter]
    error: Callable[[GatewayError], tuple[int, dict[str, Any]]]
    error_event: Callable[[GatewayError], tuple[str | None, Any]]
    keep_alive: str = COMMENT


CHAT = Dialect(
    lambda body, model: read_chat(body),
    lambda reply, request: chat_reply(reply),
    ChatWriter,
    chat_error,
    lambda error: (None, chat_error(error)[1]),
)
RESPONSES = Dialect(
    lambda body, model: read_responses(body), responses_reply, ResponsesWriter, chat_error, responses_error_event
)
ANTHROPIC = Dialect(
    lambda body, model: read_messages(body),
    messages_reply,
    MessagesWriter,
    messages_error,
    lambda error: ("error", messages_error(error)[1]),
    keep_alive='event: ping\ndata: {"type": "ping"}\n\n',
)


def _google(*, stream: bool) -> Dialect:
    return Dialect(
        partial(read_google, stream=stream),
        google_reply,
        GoogleWriter,
        google_error,
        lambda error: (None, google_error(error)[1]),
        keep_alive="\n",  # the SDK takes a comment for the beginning of an error
    )


GOOGLE = _google(stream=False)
CHAT_PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
    **{f"{path}generateContent": GOOGLE for path in GOOGLE_PATHS},
    **{f"{path}streamGenerateContent": _google(stream=True) for path in GOOGLE_PATHS},
}
COUNT_PATHS: dict[str, tuple[Callable[[Any, str], ChatRequest], str]] = {  # and the name of the count in the answer
    "/v1/messages/count_tokens": (lambda body, model: read_messages(body, counting=True), "input_tokens"),
    **{f"{path}countTokens": (partial(read_google, stream=False), "totalTokens") for path in GOOGLE_PATHS},
}
_BEGINNINGS = {"/v1/messages": ANTHROPIC, "/v1/responses": RESPONSES, "/v1beta/": GOOGLE, "/v1/models/": GOOGLE}


def dialect_of(path: str) -> Dialect:
    """In which an error is told, also for a path that does not exist."""
    return next((dialect for beginning, dialect in _BEGINNINGS.items() if path.startswith(beginning)), CHAT)
