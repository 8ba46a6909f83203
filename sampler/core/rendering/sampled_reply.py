"""One reply as sampled by the engine, and the sentinels that represent it in later renderings.

Promise: ids are cut, never created. The kept part of a reply is a part of the sampled ids; only a token that contains both
blanks that a template trims and text that it keeps is encoded anew, alone.
"""

import copy
from collections.abc import Sequence
from functools import cached_property
from itertools import count

from sampler.core.rendering.marks import MARK_END
from sampler.core.rendering.reply_message import Words, words_of
from sampler.core.rendering.template import ChatTemplate, Message
from sampler.core.rendering.turn_format import TurnFormat, make_sentinel

_numbers = count()


class SampledReply:
    """`body_ids`: without the final token, which is `end_id` (None: cut off). `opener`: the prompt's ending. `prefix`: the
    reply's beginning, which the prompt has. `says_nothing`: the reply has no text besides its reasoning and calls. `number`:
    unique in the process."""

    def __init__(
        self,
        turn: TurnFormat,
        template: ChatTemplate,
        output_ids: Sequence[int],
        message: Message | None,
        prompt_text: str,
        prefix: str = "",
    ) -> None:
        ended = bool(output_ids) and output_ids[-1] in turn.end_ids
        self.message = message
        self.number = next(_numbers)
        self.end_id = output_ids[-1] if ended else None
        self.body_ids = list(output_ids[:-1] if ended else output_ids)
        self.opener = prompt_ending(turn, template, prompt_text)
        self._turn = turn
        self._template = template
        self.prefix: str = template.special.mark(prefix)
        self._answer_at = None if prefix else _find_text(template, self.body_ids, turn.end_think)
        reasoning = template.decode(self.body_ids[: self._answer_at]) if self._answer_at else ""
        has_reasoning = bool(reasoning.replace(turn.think, "").replace(turn.end_think, "").strip())
        self.says_nothing = message is not None and not str(message.get("content") or "").strip()
        self.closes_empty_reasoning = self._answer_at is not None and not has_reasoning
        names = ["content", "call", "reasoning"] if has_reasoning else ["content", "call"]
        self.sentinels = {name: make_sentinel() for name in names}

    @property
    def output_ids(self) -> list[int]:
        return self.body_ids if self.end_id is None else [*self.body_ids, self.end_id]

    @cached_property
    def words(self) -> frozenset[Words]:
        """`words_of` its message, and of the text as sampled, with reasoning and calls in the model's spelling."""
        raw = {"content": self.prefix + self._template.decode(self.body_ids)}
        return frozenset(map(words_of, (self.message or raw, raw)))

    def again(self) -> "SampledReply":
        """The same reply for another position in a history, with new sentinels."""
        twin = copy.copy(self)
        twin.sentinels = {name: make_sentinel() for name in self.sentinels}
        return twin

    def as_message(self, call_ids: Sequence[str]) -> Message:
        """`call_ids`: of the results that follow. Only the first call's name is a sentinel: calls stay or go together.

        A reply that only calls has no content here either: templates put other blanks, or other turns, around an empty one.
        """
        names = [self.sentinels["call"], *["tool"] * len(call_ids)]
        calls = list(zip(call_ids, names, strict=False))
        alone = self.says_nothing and bool(calls) and self._turn.call_opening is not None and not self.prefix
        content = "" if alone else self.prefix + self.sentinels["content"]
        return self._turn.message(self.sentinels.get("reasoning"), content, calls)

    def ids_without_reasoning(self) -> list[int]:
        """The ids after the reasoning, without the blanks before them."""
        rest = self.body_ids[self._answer_at or 0 :]
        text = self._template.decode(rest)
        blanks = len(text) - len(text.lstrip())
        for cut in range(len(rest) + 1):
            head = self._template.decode(rest[:cut])
            if head == text[:blanks]:
                return rest[cut:]
            if len(head) > blanks and text.startswith(head):  # not in the middle of a character
                return [*self._template.encode_plain(head[blanks:]), *rest[cut:]]
        return rest


def _find_text(template: ChatTemplate, ids: Sequence[int], target: str) -> int | None:
    """Index after the first token that completes `target`; None if absent."""
    token = template.token_id(target)
    if token is not None:
        return ids.index(token) + 1 if token in ids else None
    if target not in template.decode(ids):
        return None
    low, high = 0, len(ids)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if target in template.decode(ids[:middle]) else (middle, high)
    return high


def prompt_ending(turn: TurnFormat, template: ChatTemplate, text: str) -> str:
    """The ending of a prompt: the header of the reply, or everything from the template's last special token."""
    tail = text[text.rfind(MARK_END) + 1 :]  # after the last marked token of untrusted text
    head = template.special.tokens.match(turn.header)
    at = tail.rfind(head.group()) if head else -1
    if at >= 0 and turn.end_of_turn(tail, at) < 0:  # an older reply's header would be followed by that reply's end
        return tail[at:]
    places = [match.start() for match in template.special.tokens.finditer(tail)]
    return tail[places[-1] :] if places else tail
