"""One episode's tokens, exactly as the engine saw and sampled them: append-only, and never re-encoded.

    ids      [ prompt of turn 1 | reply 1 (sampled) | what the template adds | reply 2 (sampled) | … ]
    start    ─────────────────▶
    extend                       ──────────────────▶◀─────────────────────▶

Promise: the prompt of turn n+1 begins with the very ids of turn n's prompt and reply. What is appended is exactly what
the template writes between the end of an assistant's turn and the next generation prompt, for the new messages. It is
read off a rendering of a dummy conversation with the same tools and the same new messages, cut behind the dummy reply's
end-of-turn token; so it does not depend on the history, and costs no more in turn 100 than in turn 2.

Where the template would also rewrite *older* turns (Qwen3 drops their reasoning), this deliberately does not: the ids
that were sampled stay. A context policy that wants another history calls `start` again, and makes a branch of the tree.
"""

import secrets
from collections.abc import Sequence

from sampler.template import ChatTemplate, Message, ToolSchema
from shared.errors import ConfigError

# Private-use characters, which no template trims or splits at; random, so that no tool result can spell it.
_REPLY = f"\U000f0002{secrets.token_hex(8)}\U000f0002"


class Context:
    """`ids`: everything so far. One object per episode; the template may be shared."""

    def __init__(self, template: ChatTemplate, tools: Sequence[ToolSchema] | None = None) -> None:
        self.template = template
        self.tools = list(tools) if tools else None
        self.ids: list[int] = []
        self.turn_end_text, self.turn_end_id = _turn_end(template)

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the first prompt. Also begins a new branch: whatever stood in `ids` is forgotten."""
        self.ids = self.template.render_ids(messages, self.tools, add_generation_prompt=True)
        return list(self.ids)

    def extend(self, output_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """Append a reply and the messages that answer it; returns only the new prompt ids that follow the reply.

        A reply that did not end with the end-of-turn token (length limit, stop string, another stop token) gets it as
        the first of the returned ids: a prompt token that nobody sampled and nobody trains.
        """
        if not new_messages:
            raise ValueError("extend needs the messages that answer the reply (tool results or a user's text)")
        added = self._between_turns(new_messages)
        if not output_ids or output_ids[-1] != self.turn_end_id:
            added.insert(0, self.turn_end_id)
        self.ids += output_ids
        self.ids += added
        return added

    def _between_turns(self, new_messages: Sequence[Message]) -> list[int]:
        """What stands behind an assistant's end-of-turn token when `new_messages` and a generation prompt follow."""
        rendered = self.template.render_marked(
            [{"role": "user", "content": "."}, _dummy_reply(new_messages), *new_messages], self.tools, True
        )
        _, found, tail = rendered.rpartition(_REPLY)
        _, ended, tail = tail.partition(self.turn_end_text)
        if not found or not ended:
            raise ConfigError(
                "chat template: an assistant message in the middle of a conversation is not followed by "
                f"{self.turn_end_text!r}, so the end of a reply cannot be found; use a template that keeps each turn whole"
            )
        # Encoded behind the token, then cut: some tokenizers treat text at the start of a string differently.
        ids = self.template.encode_marked(self.turn_end_text + tail)
        assert ids[0] == self.turn_end_id, f"{self.turn_end_text!r} became {ids[0]}, expected {self.turn_end_id}"
        return ids[1:]


def _dummy_reply(new_messages: Sequence[Message]) -> dict[str, object]:
    """An assistant message that the new ones can follow: tool results follow a message that called those tools."""
    reply: dict[str, object] = {"role": "assistant", "content": _REPLY}
    results = [message for message in new_messages if message.get("role") == "tool"]
    if results:
        reply["tool_calls"] = [
            {
                "id": str(message.get("tool_call_id", "call00000")),
                "type": "function",
                "function": {"name": str(message.get("name", "tool")), "arguments": {}},
            }
            for message in results
        ]
    return reply


def _turn_end(template: ChatTemplate) -> tuple[str, int]:
    """Text and id of the token that ends an assistant's turn: the first special token behind a reply."""
    rendered = template.render_marked(
        [{"role": "user", "content": "."}, {"role": "assistant", "content": _REPLY}], None
    )
    _, found, tail = rendered.rpartition(_REPLY)
    match = template.special_re.search(tail) if found else None
    token_id = template.token_id(match.group()) if match else None
    if match is None or token_id is None:
        raise ConfigError(
            "chat template: no special token follows an assistant's message, so a turn has no end the engine can stop at; "
            'expected one such as "<|im_end|>" or eos_token'
        )
    return match.group(), token_id
