"""How a chat template writes a turn of the model: learned once per template, by rendering small conversations with sentinels.

    <|im_start|>assistant\n  <think>\n R \n</think>\n\n C <tool_call> … </tool_call>  <|im_end|>\n<|im_start|>user …
                             reasoning                 content, calls                 end of the turn

What is learned
  * which tokens end a turn. Usually one; GLM ends a turn with the token that opens the next role, so there are two, and a
    model is stopped at either.
  * where the template takes reasoning: under a key of the message; in the content, if it knows nothing of reasoning; or
    nowhere, if it cuts out of a content what stands before the closing tag.
  * whether a call's arguments are an object or, for templates that concatenate texts, a JSON text.
  * whether it shows results of tools at all. Where it does not, the user says them.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, product
from typing import Any

from sampler.rendering.template import MARK_END, MARK_START, ChatTemplate, Message
from shared.errors import ConfigError

THINK, END_THINK = "<think>", "</think>"
IN_CONTENT = "content"
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "thought")
# Some templates want an id of exactly nine letters or digits.
CALL_ID = "call00000"

# Llama 3.1 ends a message that calls a tool with it; its template writes it for built-in tools only.
_OTHER_ENDS = ("<|eom_id|>",)
_USER: Message = {"role": "user", "content": "."}
_TOOL: Message = {"role": "tool", "name": "tool", "tool_call_id": CALL_ID, "content": "."}
_TOOLS = [
    {
        "type": "function",
        "function": {"name": "tool", "description": ".", "parameters": {"type": "object", "properties": {}}},
    }
]


def make_sentinel() -> str:
    """Private-use characters, which no template trims or splits at; random digits, so that no tool result can spell it."""
    return f"\U000f0002{secrets.randbelow(10**16):016}\U000f0002"


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """`ends_re` finds, in a marked text, what ends a turn (group 1); `end_ids`: every token that an engine should stop at.

    `reasoning_key`: IN_CONTENT where reasoning is content like any other, None where the template never shows it.
    """

    ends_re: re.Pattern[str]
    end_ids: tuple[int, ...]
    reasoning_key: str | None
    think: str
    end_think: str
    arguments_as_text: bool
    shows_results: bool

    def spoken(self, messages: Sequence[Message]) -> Sequence[Message]:
        """As the template can show them: results of tools in a row are one message of the user where it shows none."""
        if self.shows_results:
            return messages
        spoken: list[Message] = []
        for is_result, run in groupby(messages, lambda message: message.get("role") == "tool"):
            found = list(run)
            if is_result:
                told = "\n\n".join(f"[{message.get('name') or 'tool'}]\n{message['content']}" for message in found)
                found = [{"role": "user", "content": told}]
            spoken += found
        return spoken

    def message(self, reasoning: str | None, content: str, calls: Sequence[tuple[str, str]]) -> Message:
        """An assistant's message for the template; `calls`: (id, name) of each, without arguments."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning is not None and self.reasoning_key == IN_CONTENT:
            message["content"] = f"{self.think}\n{reasoning}\n{self.end_think}\n\n{content}"
        elif reasoning is not None and self.reasoning_key is not None:
            message[self.reasoning_key] = reasoning
        if calls:
            arguments = "{}" if self.arguments_as_text else {}
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}} for i, name in calls
            ]
        return message

    def end_of_turn(self, text: str, start: int) -> int:
        """Where in a marked text the turn ends that `start` lies in: the place of its end token; -1 without one."""
        for match in self.ends_re.finditer(text, start):
            if match.group(1):
                return match.start()
        return -1


@lru_cache(maxsize=16)
def turn_format(template: ChatTemplate) -> TurnFormat:
    """Raises ConfigError for a template whose turns have no end."""
    ends = sorted(set(_ends(template)), key=len, reverse=True)
    if not ends:
        template.render_marked(
            [_USER, {"role": "assistant", "content": "."}], _TOOLS
        )  # a template that refuses this says why
        raise ConfigError(
            "chat template: no special token follows an assistant's message, so a turn has no end the engine can stop at; "
            'expected one such as "<|im_end|>" or eos_token'
        )
    stops = [*ends, template.special_tokens.get("eos_token", ""), *_OTHER_ENDS]
    ids = [template.token_id(text) for text in dict.fromkeys(stops) if text]
    key, think, end_think = _reasoning(template)
    return TurnFormat(
        ends_re=re.compile(f"{MARK_START}.*?{MARK_END}|({'|'.join(map(re.escape, ends))})", re.DOTALL),
        end_ids=tuple(i for i in ids if i is not None),
        reasoning_key=key,
        think=think,
        end_think=end_think,
        arguments_as_text=_render(template, [_USER, _called("."), _TOOL]) is None,
        shows_results=_shows_results(template),
    )


def _called(content: str, **fields: str) -> Message:
    call = {"id": CALL_ID, "type": "function", "function": {"name": "tool", "arguments": {}}}
    return {"role": "assistant", "content": content, "tool_calls": [call], **fields}


def _render(template: ChatTemplate, messages: Sequence[Message], add_generation_prompt: bool = True) -> str | None:
    """None where the template refuses the messages. Some (Phi-4-mini's) refuse whatever has no tools."""
    for tools in (None, _TOOLS):
        with contextlib.suppress(ConfigError):
            return template.render_marked(messages, tools, add_generation_prompt)
    return None


def _ends(template: ChatTemplate) -> Iterator[str]:
    """The special tokens that stand first behind a plain reply, whatever follows it."""
    reply = make_sentinel()
    plain: Message = {"role": "assistant", "content": reply}
    for rest in ([], [_USER], [_TOOL]):
        text = _render(template, [_USER, plain, *rest], bool(rest))
        _, found, tail = (text or "").rpartition(reply)
        match = template.special_re.search(tail) if found else None
        if match and template.token_id(match.group()) is not None:
            yield match.group()


def _shows_results(template: ChatTemplate) -> bool:
    told = make_sentinel()
    for arguments, tools in product(({}, "{}"), (None, _TOOLS)):
        call = {"id": CALL_ID, "type": "function", "function": {"name": "tool", "arguments": arguments}}
        turns: list[Message] = [{"role": "assistant", "content": "", "tool_calls": [call]}, {**_TOOL, "content": told}]
        with contextlib.suppress(ConfigError):
            if told in template.render_marked([_USER, *turns], tools, True):
                return True
    return False


def _reasoning(template: ChatTemplate) -> tuple[str | None, str, str]:
    """The key that makes reasoning show, in the last message or in one that called a tool, and what stands around it."""
    for key in REASONING_KEYS:
        thought, content = make_sentinel(), make_sentinel()
        plain: Message = {"role": "assistant", "content": content, key: thought}
        for rest in ([plain], [_called(content, **{key: thought}), _TOOL]):
            text = _render(template, [_USER, *rest], len(rest) > 1) or ""
            before, found, tail = text.partition(thought)
            if found:
                opened, closed = before.split(), tail.partition(content)[0].split()
                shown = content in tail and opened and closed
                return (key, opened[-1], closed[0]) if shown else (key, THINK, END_THINK)
    thought, content = make_sentinel(), make_sentinel()
    plain = {"role": "assistant", "content": f"{THINK}\n{thought}\n{END_THINK}\n\n{content}"}
    text = _render(template, [_USER, plain], False) or ""
    return IN_CONTENT if thought in text or content not in text else None, THINK, END_THINK
