"""Learns how a chat template writes a turn of the model, once per template, by rendering small conversations with sentinels.

    <|im_start|>assistant\n  <think>\n R \n</think>\n\n C <tool_call> … </tool_call>  <|im_end|>\n<|im_start|>user …
                             reasoning                 content, calls                 end of the turn

Learned properties
  * the tokens that end a turn. Usually one; GLM ends a turn with the token that opens the next role, so there are two, and
    the model stops at either.
  * the place of reasoning: a key of the message; the content, if the template does not handle reasoning; or none, if it
    removes the part of a content before the closing tag.
  * whether a call's arguments are an object or, for templates that concatenate texts, a JSON text.
  * whether it shows tool results. If not, they are sent as user messages.
  * whether it shows a system message. If not (Gemma 1 and 2 refuse one), its text is sent in front of the user's.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, product
from typing import Any

from sampler.core.parsers.reply import END_THINK, THINK
from sampler.core.rendering.marks import MARK_END, MARK_START
from sampler.core.rendering.template import ChatTemplate, Message
from shared.errors import ConfigError
from shared.names import INSTRUCTING_ROLES

IN_CONTENT = "content"
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "thought")
# Some templates require an id of exactly nine letters or digits.
CALL_ID = "call00000"

# Ends a message with a tool call in Llama 3.1; its template writes it for built-in tools only.
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
    """Private-use characters, which no template trims or splits at; random digits, so that no tool result can contain it."""
    return f"\U000f0002{secrets.randbelow(10**16):016}\U000f0002"


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """`ends_re` finds the end of a turn (group 1) in a marked text; `end_ids`: all tokens that an engine must stop at.

    `reasoning_key`: IN_CONTENT if reasoning is part of the content, None if the template never shows it.
    `call_opening`: the text before the name of a turn's first call, without blanks; None if a call without text is not
    shown. `header`: the end of a prompt, before the reply; empty for templates without one.
    """

    ends_re: re.Pattern[str]
    end_ids: tuple[int, ...]
    reasoning_key: str | None
    think: str
    end_think: str
    arguments_as_text: bool
    shows_results: bool
    shows_system: bool
    call_opening: str | None
    header: str

    def spoken(self, messages: Sequence[Message]) -> Sequence[Message]:
        """As the template can show them: if it shows no tool results, consecutive ones become one user message; if no system
        message, its text goes in front of the next user message."""
        if not self.shows_system:
            messages = _without_system(messages)
        if self.shows_results:
            return messages
        spoken: list[Message] = []
        for is_result, run in groupby(messages, lambda message: message.get("role") == "tool"):
            group = list(run)
            if is_result:
                group = [{"role": "user", "content": _results(group)}]
            spoken += group
        return spoken

    def message(self, reasoning: str | None, content: str, calls: Sequence[tuple[str, str]]) -> Message:
        """An assistant message for the template; `calls`: (id, name) of each, without arguments."""
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
        """The position of the end token of the turn that contains `start`, in a marked text; -1 without one."""
        for match in self.ends_re.finditer(text, start):
            if match.group(1):
                return match.start()
        return -1


@lru_cache(maxsize=16)
def turn_format(template: ChatTemplate) -> TurnFormat:
    """Raises ConfigError for a template whose turns have no end token, or one in their middle."""
    template = replace(template, max_tokens=None)  # its own conversations may be longer than an episode's
    single = {text for text in _ends(template) if template.token_id(text) is not None}
    ends = sorted(single, key=lambda text: (-len(text), text))
    if not ends:
        template.render_marked(
            [_USER, {"role": "assistant", "content": "."}], _TOOLS
        )  # a template that rejects this explains why
        raise ConfigError(
            "chat template: no special token follows an assistant's message, so a turn has no end the engine can stop at; "
            'expected one such as "<|im_end|>" or eos_token'
        )
    stops = [*ends, template.special_tokens.get("eos_token", ""), *_OTHER_ENDS]
    ids = [template.token_id(text) for text in dict.fromkeys(stops) if text]
    key, think, end_think = _reasoning(template)
    if end_think in ends:
        raise ConfigError(
            f'chat template: "{end_think}" ends reasoning and also a turn (gpt-oss and Solar-Open are written so), and an engine '
            "that stops at it would stop behind the reasoning, before any reply; expected another token behind reasoning, as in "
            f'"{THINK}…{END_THINK}"'
        )
    as_text = _render(template, [_USER, _called("."), _TOOL]) is None
    return TurnFormat(
        ends_re=re.compile(f"{MARK_START}.*?{MARK_END}|({'|'.join(map(re.escape, ends))})", re.DOTALL),
        end_ids=tuple(i for i in ids if i is not None),
        reasoning_key=key,
        think=think,
        end_think=end_think,
        arguments_as_text=as_text,
        shows_results=_shows_results(template),
        shows_system=_shows_system(template),
        call_opening=_call_opening(template, as_text),
        header=_header(template) or _constant_header(template, ends),
    )


def joined(content: Any, text: str) -> Any:
    """`content`, a text or a list of blocks, and `text` behind it."""
    if not content:
        return text
    return f"{content}\n\n{text}" if isinstance(content, str) else [*content, {"type": "text", "text": text}]


def _results(messages: Sequence[Message]) -> Any:
    """Contents of tool results, each behind the tool's name: a text, or blocks where one of them has blocks."""
    named = [(f"[{message.get('name') or 'tool'}]\n", message["content"]) for message in messages]
    if not any(isinstance(content, list | tuple) for _, content in named):
        return "\n\n".join(f"{name}{content}" for name, content in named)
    content: Any = ""
    for name, result in named:
        content = (
            _both(joined(content, name), result)
            if isinstance(result, list | tuple)
            else joined(content, f"{name}{result}")
        )
    return content


def _without_system(messages: Sequence[Message]) -> Sequence[Message]:
    merged: list[Message] = []
    before: Any = ""  # content of system messages that no user message has taken yet
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in INSTRUCTING_ROLES:
            before = _both(before, content)
        elif role == "user" and before:
            merged.append({**message, "content": _both(before, content)})
            before = ""
        else:
            merged.append(message)
    return [*merged, {"role": "user", "content": before}] if before else merged


def _both(before: Any, content: Any) -> Any:
    """Two contents, each a text or a list of blocks."""
    if isinstance(content, list | tuple):
        blocks = [{"type": "text", "text": before}] if isinstance(before, str) and before else list(before or ())
        return [*blocks, *content]
    return joined(before, str(content)) if content else before


def common_length(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix of two lists or texts; by bisection, since comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_ending(a: str, b: str) -> str:
    length = common_length(a[::-1], b[::-1])
    return a[len(a) - length :]


def _called(content: str, name: str = "tool", as_text: bool = False) -> Message:
    call = {"id": CALL_ID, "type": "function", "function": {"name": name, "arguments": "{}" if as_text else {}}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _render(template: ChatTemplate, messages: Sequence[Message], add_generation_prompt: bool = True) -> str | None:
    """None if the template rejects the messages. Some (Phi-4-mini's) reject messages without tools."""
    for tools in (None, _TOOLS):
        with contextlib.suppress(ConfigError):
            return template.render_marked(messages, tools, add_generation_prompt)
    return None


def _ends(template: ChatTemplate) -> Iterator[str]:
    """The first special token after a plain reply with any continuation, and the one after a turn's last call."""
    header = _header(template)
    reply = make_sentinel()
    plain: Message = {"role": "assistant", "content": reply}
    tails = []
    for rest in ([], [_USER], [_TOOL]):
        text = _render(template, [_USER, plain, *rest], bool(rest))
        _, separator, tail = (text or "").rpartition(reply)
        tails.append(template.special.tokens.findall(tail) if separator else [])
        # If it shows no result after a plain reply, the next reply's header does not end this one.
        if tails[-1] and not (rest and header.startswith(tails[-1][0])):
            yield tails[-1][0]
    yield from _end_of_calls(template, () if header else tails[0])


def _header(template: ChatTemplate) -> str:
    """The generation prompt: the text that a template adds for the next reply."""
    prompt, without = (_render(template, [_USER], with_header) or "" for with_header in (True, False))
    return prompt.removeprefix(without) if prompt.startswith(without) else ""


def _constant_header(template: ChatTemplate, ends: Sequence[str]) -> str:
    """The header of a template that always writes it: the common end of all conversations after the last message's end."""
    plain: Message = {"role": "assistant", "content": "."}
    texts = [_render(template, messages, False) or "" for messages in ([_USER], [_USER, plain])]
    same = _common_ending(*texts)
    behind = max(same.rfind(end) + len(end) if end in same else 0 for end in ends)
    return same[behind:].lstrip()


def _end_of_calls(template: ChatTemplate, always: Sequence[str]) -> Iterator[str]:
    """End tokens of calls in Cohere, gpt-oss and others, which differ from a plain reply's. `always`: the text after every
    reply, in a template that always begins the next one."""
    for as_text, count in product((False, True), (2, 1)):
        name = make_sentinel()
        turn = dict(_called("", name, as_text))
        turn["tool_calls"] *= count
        between = (_render(template, [_USER, turn], False) or "").split(name)[1:]
        if len(between) != count:
            continue
        ends = template.special.tokens.findall(between[-1])
        if always:
            ends = [text for text in ends if text in always][:1]
        elif ends and not between[-1].rstrip().endswith(ends[-1]):
            ends = []
        if ends and ends[-1] not in "".join(between[:-1]):
            yield ends[-1]
        return


def _shows_results(template: ChatTemplate) -> bool:
    sentinel = make_sentinel()
    for arguments, tools in product(({}, "{}"), (None, _TOOLS)):
        call = {"id": CALL_ID, "type": "function", "function": {"name": "tool", "arguments": arguments}}
        turns: list[Message] = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {**_TOOL, "content": sentinel},
        ]
        with contextlib.suppress(ConfigError):
            if sentinel in template.render_marked([_USER, *turns], tools, True):
                return True
    return False


def _shows_system(template: ChatTemplate) -> bool:
    sentinel = make_sentinel()
    return sentinel in (_render(template, [{"role": "system", "content": sentinel}, _USER]) or "")


def _call_opening(template: ChatTemplate, as_text: bool) -> str | None:
    """The common text before the name, of a call with and without text; after the prompt, if no text is shown."""
    name, text = make_sentinel(), make_sentinel()
    alone, beside = (_render(template, [_USER, _called(content, name, as_text), _TOOL]) or "" for content in ("", text))
    before, separator, _ = alone.partition(name)
    if not separator:
        return None
    other = beside.partition(name)[0]
    if text in other:
        return _common_ending(before, other).lstrip()
    same = common_length(before, _render(template, [_USER]) or "")
    same = min([same, *(m.start() for m in template.added_re.finditer(before) if m.start() < same < m.end())])
    return before[same:].lstrip()


def _reasoning(template: ChatTemplate) -> tuple[str | None, str, str]:
    """The key that shows reasoning, in the last message or in one with a tool call, and the text around it."""
    for key in REASONING_KEYS:
        thought, content = make_sentinel(), make_sentinel()
        plain: Message = {"role": "assistant", "content": content, key: thought}
        for rest in ([plain], [{**_called(content), key: thought}, _TOOL]):
            text = _render(template, [_USER, *rest], len(rest) > 1) or ""
            before, separator, tail = text.partition(thought)
            if separator:
                opened, closed = before.split(), tail.partition(content)[0].split()
                # The tokens next to the reasoning, in the text there without blanks.
                starts = [match.start() for match in template.added_re.finditer(opened[-1])] if opened else []
                ended = template.added_re.match(closed[0]) if closed else None
                if not closed or not opened or (content not in tail and not (starts and ended)):
                    return key, THINK, END_THINK
                return key, opened[-1][starts[-1] if starts else 0 :], ended.group() if ended else closed[0]
    thought, content = make_sentinel(), make_sentinel()
    plain = {"role": "assistant", "content": f"{THINK}\n{thought}\n{END_THINK}\n\n{content}"}
    text = _render(template, [_USER, plain], False) or ""
    return IN_CONTENT if thought in text or content not in text else None, THINK, END_THINK
