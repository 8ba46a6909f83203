"""A turn as its client reads it, and the forms in which it may send the reply back."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from sampler.gateway.exchange import ChatReply, ReceivedMessage, RepliedCall, SampledToken, reply_id
from sampler.gateway.streaming import first_stop, reply_parts, without_beginning
from shared.documents.packed import unpack_floats, unpack_ints

if TYPE_CHECKING:
    from sampler.core.episode.sampler import Turn


def client_reply(
    model: str, turn: "Turn", stops: Sequence[str] = (), streamed: str = "", prefix: str = ""
) -> ChatReply:
    """A reply as the client reads it; its content begins with what was `streamed`. `stops` and `prefix`: of its request."""
    parsed, usage = turn.parsed, turn.usage
    reasoning, content = reply_parts(prefix + turn.text, parsed, prefix.lstrip() + streamed if prefix else streamed)
    content = without_beginning(content, prefix)
    stopped_by, _ = first_stop(turn.text, stops)
    return ChatReply(
        id=reply_id(turn.dispatch_id),
        model=model,
        content=first_stop(content, stops)[1],
        reasoning=first_stop(reasoning, stops)[1],
        calls=[RepliedCall(call.id, call.name, call.arguments) for call in parsed.tool_calls],
        is_cut=turn.finish_reason == "length",
        prompt_tokens=usage.get("prompt", 0),
        cached_tokens=usage.get("cached", 0),
        completion_tokens=usage.get("completion", 0),
        created=int(time.time()),
        stopped_by=stopped_by,
    )


def forms_of(turn: "Turn", reply: ChatReply, prefix: str = "") -> list[ReceivedMessage]:
    """What the client was told, behind the reply's beginning, and the text as sampled, which some clients keep instead."""
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in reply.calls]
    shown = {"role": "assistant", "content": prefix + reply.content, "tool_calls": calls}
    return [shown, {"role": "assistant", "content": prefix + turn.text}]


def sampled_tokens(turn: "Turn", template: ChatTemplate) -> list[SampledToken]:
    """Every token of the reply, with reasoning and calls, but for the one that ends a turn."""
    assert turn.response is not None, "a turn of this episode was sampled"
    ids = [int(token) for token in unpack_ints(turn.response.output_ids)]
    logprobs = [float(value) for value in unpack_floats(turn.response.output_logprobs)]
    if ids and ids[-1] in turn_format(template).end_ids:
        ids, logprobs = ids[:-1], logprobs[:-1]
    return [SampledToken(token, template.decode([token]), value) for token, value in zip(ids, logprobs, strict=True)]
