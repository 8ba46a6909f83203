"""The dialects by path. Each is a set of pure functions; the server knows them by this table alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sampler.gateway.anthropic_messages import MessagesWriter, messages_error, messages_reply, read_messages
from sampler.gateway.chat_completions import ChatWriter, chat_error, chat_reply, read_chat
from sampler.gateway.exchange import ChatReply, ChatRequest, GatewayError, ReplyWriter

KEEP_ALIVE = ": keep-alive\n\n"  # a comment, which every reader of server-sent events skips


@dataclass(frozen=True, slots=True)
class Dialect:
    """`writer`: of one reply as a stream. `keep_alive`: sent while a reply is sampled."""

    read: Callable[[Any], ChatRequest]
    reply: Callable[[ChatReply, ChatRequest], dict[str, Any]]
    writer: Callable[[ChatRequest], ReplyWriter]
    error: Callable[[GatewayError], tuple[int, dict[str, Any]]]
    error_event: str | None = None
    keep_alive: str = KEEP_ALIVE


CHAT = Dialect(read_chat, lambda reply, request: chat_reply(reply), ChatWriter, chat_error)
ANTHROPIC = Dialect(
    read_messages,
    messages_reply,
    MessagesWriter,
    messages_error,
    error_event="error",
    keep_alive='event: ping\ndata: {"type": "ping"}\n\n',
)
CHAT_PATHS = {"/v1/chat/completions": CHAT, "/v1/messages": ANTHROPIC}
COUNT_PATHS = {"/v1/messages/count_tokens": partial(read_messages, counting=True)}
