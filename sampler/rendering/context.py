"""One episode's tokens, exactly as the engine saw and sampled them. Model output is never re-encoded.

    ids      [ prompt of turn 1 | reply 1 (sampled) | what the template adds | reply 2 (sampled) | … ]
    start    ─────────────────▶
    extend                       ──────────────────▶◀─────────────────────▶

With every new message the whole conversation is rendered by the template, the model's replies as sentinels. Two things are
read off that text.

  * It begins with the text of the last prompt, and shows all of the last reply: `clean`. What stands behind the reply's end
    is encoded and appended; the ids before it stay as they are. Only new text is ever encoded.
  * It shows older turns differently (Qwen3 drops reasoning once a new question comes, Mistral moves its list of tools): the
    template rewrites. With `branch` the prompt becomes what the template shows now: template text is encoded, and where a
    reply's text is still there, the ids that were sampled are put in its place. The longest common prefix with the last
    request is shared, the rest are prompt tokens, which have no loss. With `keep` history stays as it was sampled.

How a reply is spelled is no reason for a branch: a model that writes its JSON without blanks keeps its blanks-free ids,
though the template would write them with blanks. A branch comes only from what the template shows or hides.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sampler.rendering.known_replies import KnownReplies
from sampler.rendering.marks import MARK_END
from sampler.rendering.sampled_reply import SampledReply
from sampler.rendering.template import ChatTemplate, Message, ToolSchema
from sampler.rendering.turn_format import CALL_ID, common_length, turn_format
from shared.documents.states import BranchCause
from shared.errors import ConfigError

Rewrites = Literal["branch", "keep"]
MAX_SHOWN_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Prompt:
    """The next request: the first `shared_length` tokens of the last prompt and its reply, then `added`."""

    shared_length: int
    added: list[int]
    cause: BranchCause


@dataclass(frozen=True, slots=True)
class _Shown:
    """Where a rendering shows a reply: from `start` to its end-of-turn token at `end` (-1: there is none). Not `whole`: without
    its reasoning."""

    start: int
    end: int
    whole: bool


class Context:
    """`ids`: the whole prompt of the next request. One object per episode; the template may be shared."""

    def __init__(
        self, template: ChatTemplate, tools: Sequence[ToolSchema] | None = None, rewrites: Rewrites = "branch"
    ) -> None:
        self.template = template
        self.tools = list(tools) if tools else None
        self.rewrites = rewrites
        self.format = turn_format(template)
        self.ids: list[int] = []
        self._marked_tools = template.mark_tools(self.tools)
        self._now = datetime.now()
        self._messages: list[Message] = []
        self._known = KnownReplies()
        self._replies: list[SampledReply] = []  # that the history shows
        self._places: list[int] = []  # of the replies among the messages
        self._call_ids: list[list[str]] = []  # of the calls that each reply is shown with
        self._text = ""  # the rendering that the last prompt was made of
        self._encoded: dict[str, list[int]] = {}  # of text between replies, which returns with every rewriting

    def start(self, messages: Sequence[Message]) -> Prompt:
        """The first prompt."""
        self._known.wrote(messages)
        self._messages = self._marked(messages)
        self._text = self._render()
        self.ids = self._encode(self._text)
        return Prompt(0, list(self.ids), BranchCause.CLEAN)

    def restart(
        self, messages: Sequence[Message], output_ids: Sequence[int] = (), message: Message | None = None
    ) -> Prompt:
        """Another history, as a context policy wants it; shares what it can with the last request and its reply.

        A message that is a reply of this episode (`KnownReplies`) keeps its sampled ids, also after other histories.
        """
        old = [*self.ids, *output_ids]
        if output_ids or message is not None:
            self._known.add(SampledReply(self.format, self.template, output_ids, message, self._text))
        self._messages, self._replies, self._places, self._call_ids = [], [], [], []
        told: list[Message] = []
        for index, (entry, reply) in enumerate(zip(messages, self._known.among(messages), strict=True)):
            if reply is None:
                told.append(entry)
                self._known.wrote([entry])
            else:
                self._messages += self._marked(told)
                told = []
                self._add_reply(reply, messages[index + 1 :])
        self._messages += self._marked(told)
        self._text = self._render()
        return self._branch(old, self._compose(self._text), BranchCause.CONTEXT_POLICY)

    def extend(
        self, output_ids: Sequence[int], new_messages: Sequence[Message], message: Message | None = None
    ) -> Prompt:
        """Append a reply and the messages that answer it; `message`: the reply as a message, for `restart` to know it by.

        A reply that did not end with an end-of-turn token (length limit, stop string) gets one as the first of the added
        ids: a prompt token, neither sampled nor trained. Raises ConfigError when the template hides the reply.
        """
        if not new_messages:
            raise ValueError("extend needs the messages that answer the reply (tool results or a user's text)")
        old = [*self.ids, *output_ids]
        before = self._text
        reply = SampledReply(self.format, self.template, output_ids, message, before)
        self._known.add(reply)
        self._known.wrote(new_messages)
        self._add_reply(reply, new_messages)
        self._messages += self._marked(new_messages)
        self._text = self._render()
        shown = self._shown(reply, 0)
        if shown is None or shown.end < 0:
            raise ConfigError(
                "chat template: an assistant message in the middle of a conversation is not shown, or not followed by an "
                "end-of-turn token, so the end of a reply cannot be found; use a template that keeps each turn whole"
            )
        added = self._encode(self._text[shown.end :])
        stopped_by = reply.end_id
        continues = self._text.startswith(before) and shown.whole and stopped_by in (None, added[0])
        if not continues and self.rewrites == "branch":
            return self._branch(old, self._compose(self._text), BranchCause.TEMPLATE_REWRITE)
        if stopped_by == added[0]:
            added = added[1:]
        self.ids = [*old, *added]
        return Prompt(len(old), added, BranchCause.CLEAN)

    def fork(self) -> "Context":
        """The same context, which goes on by itself: to look at a prompt that is perhaps never sent."""
        twin = copy.copy(self)
        twin.ids, twin._messages = list(self.ids), list(self._messages)
        twin._replies, twin._places = list(self._replies), list(self._places)
        twin._call_ids, twin._known = list(self._call_ids), self._known.copy()
        return twin

    # ------------------------------------------------------------------ rendering

    def _marked(self, messages: Sequence[Message]) -> list[Message]:
        return [self.template.mark(message) for message in self.format.spoken(messages)]

    def _add_reply(self, reply: SampledReply, following: Sequence[Message]) -> None:
        """As a message of sentinels that called the tools whose results follow."""
        results = []
        for message in following:
            if message.get("role") != "tool":
                break
            results.append(str(message.get("tool_call_id", CALL_ID)))
        self._replies.append(reply)
        self._places.append(len(self._messages))
        self._call_ids.append(results)
        self._messages.append(reply.as_message(results))

    def _render(self) -> str:
        """Templates that take only one call a turn are shown one, those that take none are shown none: the model wrote them
        anyway, and its ids stand for all of them. Raises ConfigError."""
        refused: ConfigError | None = None
        for most_calls in (MAX_SHOWN_CALLS, 1, 0):
            for index, ids in enumerate(self._call_ids):
                if len(ids) > most_calls:
                    self._call_ids[index] = ids[:most_calls]
                    self._messages[self._places[index]] = self._replies[index].as_message(ids[:most_calls])
            try:
                return self.template.render_prepared(self._messages, self._marked_tools, True, self._now)
            except ConfigError as exc:
                refused = refused or exc
        assert refused is not None
        raise refused

    def _shown(self, reply: SampledReply, cursor: int) -> _Shown | None:
        """Where the current text shows `reply`, looking from `cursor` on. None: nowhere."""
        text = self._text
        places = {name: at for name, s in reply.sentinels.items() if (at := text.find(s, cursor)) >= 0}
        if not places:
            return None
        first = min(places.values())
        last = max(at + len(reply.sentinels[name]) for name, at in places.items())
        start = cursor + self._reply_start(text[cursor:first], reply.opener)
        whole = "reasoning" in places if "reasoning" in reply.sentinels else True
        if reply.closes_empty_reasoning:
            whole = self.format.end_think in text[start:first]
        if not whole:
            start = self._answer_start(reply, start, first, places.get("content") == first)
        return _Shown(start, self.format.end_of_turn(text, last), whole)

    def _reply_start(self, before: str, opener: str) -> int:
        """Where in the text before a reply's first sentinel the reply began, by the end of the prompt it was sampled from.

        Some templates end a prompt with other text than they show there later (no empty reasoning, other blanks): the reply
        begins behind the last control token that both wrote alike, and the whole lines behind it that are the same.
        """
        at = before.rfind(opener)
        if at >= 0:
            return at + len(opener)
        head = self.template.special.tokens.match(opener)
        at = before.rfind(head.group()) if head else before.rfind(MARK_END) + 1
        if at < 0:
            return len(before)
        shown, read, seen = before[at:], 0, 0
        tokens = self.template.added_re.finditer
        for mine, other in zip(tokens(opener), tokens(shown), strict=False):
            if mine.group() != other.group():
                break
            read, seen = mine.end(), other.end()
        common = opener[read : read + common_length(opener[read:], shown[seen:])]
        return at + seen + common.rfind("\n") + 1

    def _answer_start(self, reply: SampledReply, start: int, first: int, has_content: bool) -> int:
        """Where, of a reply shown from `start` on without its reasoning, the rest begins that was sampled."""
        text = self._text
        if not has_content:
            opening = self.format.call_opening
            at = text.rfind(opening, start, first) if opening else -1
            return at if at >= 0 else start
        # Some templates write a token before every content, which is then the first that was sampled behind the reasoning.
        tokens = list(self.template.added_re.finditer(text, start, first))
        if tokens and not text[tokens[-1].end() : first].strip():
            token = self.template.token_id(tokens[-1].group())
            if reply.ids_without_reasoning()[:1] == [token]:
                return tokens[-1].start()
        return first

    # ------------------------------------------------------------------ branches

    def _branch(self, old: Sequence[int], ids: list[int], cause: BranchCause) -> Prompt:
        shared = common_length(old, ids)
        self.ids = ids
        return Prompt(shared, ids[shared:], cause)

    def _compose(self, text: str) -> list[int]:
        """Ids of a rendering: sampled ids where it shows replies, encoded text elsewhere."""
        ids: list[int] = []
        cursor = 0
        for reply in self._replies:
            shown = self._shown(reply, cursor)
            if shown is None:
                continue
            ids += self._encode(text[cursor : shown.start])
            ids += reply.body_ids if shown.whole else reply.ids_without_reasoning()
            cursor = shown.end if shown.end >= 0 else len(text)
        return ids + self._encode(text[cursor:])

    def _encode(self, marked: str) -> list[int]:
        """Text between replies begins at the start or with an end-of-turn token, so it is encoded as the whole would be."""
        if not marked:
            return []
        if marked not in self._encoded:
            self._encoded[marked] = self.template.encode_marked(marked)
        return list(self._encoded[marked])
