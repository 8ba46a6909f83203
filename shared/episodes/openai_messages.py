"""An episode as conversations in OpenAI's format: one for each thread, and for each history that a context policy began anew.

    {"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …, "tool_calls": […]}, …], "tools": […]}

The assistant's content is the reply as it was sampled, less its reasoning (`reasoning_content`): documents keep a reply's text
once, so the model's own writing of its calls stays in it, and `tool_calls` has them parsed. Trained tokens are those of the
dispatches, not what a template would make of these messages.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shared.documents.states import BranchCause
from shared.documents.tool_schemas import ToolSchemas
from shared.episodes.state import EpisodeState, ThreadState, TurnState

Message = dict[str, Any]
THINK_END = "</think>"


def conversations(state: EpisodeState, tools: Mapping[str, ToolSchemas]) -> list[dict[str, Any]]:
    """With the record's id, score and thread, so that lines of a file can be told apart."""
    histories = []
    for thread in state.threads:
        for turns in _histories(thread):
            messages = [message for turn in turns for message in _messages(turn)]
            schemas = tools.get(turns[0].dispatch.tools_hash)
            histories.append(
                {
                    "messages": messages,
                    **({"tools": schemas.schemas()} if schemas is not None else {}),
                    "record": state.record.id,
                    "score": state.record.score,
                    "policy": thread.policy,
                    "thread": thread.name,
                    "turns": [turn.number for turn in turns],
                }
            )
    return histories


def _histories(thread: ThreadState) -> Iterator[list[TurnState]]:
    own: list[TurnState] = []
    for turn in thread.turns:
        if own and turn.dispatch.branch_cause is BranchCause.CONTEXT_POLICY:
            yield own
            own = []
        own.append(turn)
    if own:
        yield own


def _messages(turn: TurnState) -> Iterator[Message]:
    yield from turn.dispatch.messages
    if turn.dispatch.response is not None:
        yield assistant_message(turn)


def assistant_message(turn: TurnState) -> Message:
    response = turn.dispatch.response
    assert response is not None, "a turn without a reply has no message"
    reasoning, content = split_reply(response.text, response.message)
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = response.message.get("tool_calls")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def split_reply(text: str, message: Mapping[str, Any]) -> tuple[str, str]:
    """(reasoning, the rest of the reply)."""
    apart = message.get("reasoning_content")
    if isinstance(apart, str) and apart:
        content = message.get("content")
        return apart, content if isinstance(content, str) else text
    before, end, after = text.partition(THINK_END)
    if not end:
        return "", text
    return before.strip().removeprefix("<think>").strip(), after.lstrip("\n")


def _call(call: Any) -> Any:
    """OpenAI has the arguments as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function.get("arguments"), ensure_ascii=False)}}
