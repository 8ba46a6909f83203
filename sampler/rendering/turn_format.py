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

from sampler.rendering.marks import MARK_END, MARK_START
from sampler.rendering.template import ChatTemplate, Message
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
    `call_opening`: what stands before the name of a turn's first call, without blanks; None where no call is shown that has
    no text besides it. `header`: what a prompt ends with for a reply to begin; empty where templates do not say.
    """

    ends_re: re.Pattern[str]
    end_ids: tuple[int, ...]
    reasoning_key: str | None
    think: str
    end_think: str
    arguments_as_text: bool
    shows_results: bool
    call_opening: str | None
    header: str

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
    """Raises ConfigError for a template whose turns have no end, or one in their middle."""
    found = {text for text in _ends(template) if template.token_id(text) is not None}
    ends = sorted(found, key=lambda text: (-len(text), text))
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
        call_opening=_call_opening(template, as_text),
        header=_header(template) or _constant_header(template, ends),
    )


def common_length(a: Sequence[object], b: Sequence[object]) -> int:
    """Of two lists or texts; by halves, since comparing slices is fast."""
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
    """None where the template refuses the messages. Some (Phi-4-mini's) refuse messages without tools."""
    for tools in (None, _TOOLS):
        with contextlib.suppress(ConfigError):
            return template.render_marked(messages, tools, add_generation_prompt)
    return None


def _ends(template: ChatTemplate) -> Iterator[str]:
    """The special tokens that stand first behind a plain reply with any continuation, and the one behind a turn's last call."""
    header = _header(template)
    reply = make_sentinel()
    plain: Message = {"role": "assistant", "content": reply}
    tails = []
    for rest in ([], [_USER], [_TOOL]):
        text = _render(template, [_USER, plain, *rest], bool(rest))
        _, found, tail = (text or "").rpartition(reply)
        tails.append(template.special.tokens.findall(tail) if found else [])
        # Where it shows no result behind a plain reply, the next reply's header is no end of this one.
        if tails[-1] and not (rest and header.startswith(tails[-1][0])):
            yield tails[-1][0]
    yield from _end_of_calls(template, () if header else tails[0])


def _header(template: ChatTemplate) -> str:
    """What a template writes, when asked to, for the next reply to begin with."""
    prompt, without = (_render(template, [_USER], asked) or "" for asked in (True, False))
    return prompt.removeprefix(without) if prompt.startswith(without) else ""


def _constant_header(template: ChatTemplate, ends: Sequence[str]) -> str:
    """The same of one that always writes it: what every conversation ends with, behind the last message's end."""
    plain: Message = {"role": "assistant", "content": "."}
    texts = [_render(template, messages, False) or "" for messages in ([_USER], [_USER, plain])]
    same = _common_ending(*texts)
    behind = max(same.rfind(end) + len(end) if end in same else 0 for end in ends)
    return same[behind:].lstrip()


def _end_of_calls(template: ChatTemplate, always: Sequence[str]) -> Iterator[str]:
    """Of Cohere, gpt-oss and others, which end a turn of calls otherwise than a plain reply. `always`: what stands behind a
    reply too, in a template that begins the next one whether it is asked to or not."""
    for as_text, count in product((False, True), (2, 1)):
        name = make_sentinel()
        turn = dict(_called("", name, as_text))
        turn["tool_calls"] *= count
        between = (_render(template, [_USER, turn], False) or "").split(name)[1:]
        if len(between) != count:
            continue
        found = template.special.tokens.findall(between[-1])
        if always:
            found = [text for text in found if text in always][:1]
        elif found and not between[-1].rstrip().endswith(found[-1]):
            found = []
        if found and found[-1] not in "".join(between[:-1]):
            yield found[-1]
        return


def _shows_results(template: ChatTemplate) -> bool:
    told = make_sentinel()
    for arguments, tools in product(({}, "{}"), (None, _TOOLS)):
        call = {"id": CALL_ID, "type": "function", "function": {"name": "tool", "arguments": arguments}}
        turns: list[Message] = [{"role": "assistant", "content": "", "tool_calls": [call]}, {**_TOOL, "content": told}]
        with contextlib.suppress(ConfigError):
            if told in template.render_marked([_USER, *turns], tools, True):
                return True
    return False


def _call_opening(template: ChatTemplate, as_text: bool) -> str | None:
    """What a call without text and one with text have in common before the name; behind the prompt, if no text is shown."""
    name, text = make_sentinel(), make_sentinel()
    alone, beside = (_render(template, [_USER, _called(content, name, as_text), _TOOL]) or "" for content in ("", text))
    before, found, _ = alone.partition(name)
    if not found:
        return None
    other = beside.partition(name)[0]
    if text in other:
        return _common_ending(before, other).lstrip()
    same = common_length(before, _render(template, [_USER]) or "")
    same = min([same, *(m.start() for m in template.added_re.finditer(before) if m.start() < same < m.end())])
    return before[same:].lstrip()


def _reasoning(template: ChatTemplate) -> tuple[str | None, str, str]:
    """The key that makes reasoning show, in the last message or in one that called a tool, and what stands around it."""
    for key in REASONING_KEYS:
        thought, content = make_sentinel(), make_sentinel()
        plain: Message = {"role": "assistant", "content": content, key: thought}
        for rest in ([plain], [{**_called(content), key: thought}, _TOOL]):
            text = _render(template, [_USER, *rest], len(rest) > 1) or ""
            before, found, tail = text.partition(thought)
            if found:
                opened, closed = before.split(), tail.partition(content)[0].split()
                # Of what stands there without blanks between, the tokens next to the reasoning.
                starts = [match.start() for match in template.added_re.finditer(opened[-1])] if opened else []
                ended = template.added_re.match(closed[0]) if closed else None
                if not closed or not opened or (content not in tail and not (starts and ended)):
                    return key, THINK, END_THINK
                return key, opened[-1][starts[-1] if starts else 0 :], ended.group() if ended else closed[0]
    thought, content = make_sentinel(), make_sentinel()
    plain = {"role": "assistant", "content": f"{THINK}\n{thought}\n{END_THINK}\n\n{content}"}
    text = _render(template, [_USER, plain], False) or ""
    return IN_CONTENT if thought in text or content not in text else None, THINK, END_THINK
