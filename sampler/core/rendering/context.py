"""One thread's tokens, exactly as the engine saw and sampled them. Model output is never re-encoded.

    ids      [ prompt of turn 1 | reply 1 (sampled) | what the template adds | reply 2 (sampled) | … ]
    start    ─────────────────▶
    extend                       ──────────────────▶◀─────────────────────▶

For every new message the template renders the whole conversation, with sentinels in place of the model's replies. There are two
cases:

  * The text begins with the text of the last prompt and shows the last reply completely: `clean`. The text after the
    reply's end is encoded and appended; the ids before it stay as they are. Only new text is ever encoded.
  * The text shows older turns differently (Qwen3 drops reasoning after a new question, Mistral moves its list of tools): the
    template rewrites. With `branch` the new prompt follows the new text: template text is encoded, and each reply that it
    still shows is replaced by its sampled ids. The longest common prefix with the last request is shared; the rest are prompt
    tokens, which have no loss. With `keep` the history stays as it was sampled.

A history that the thread did not hold before (`start`, `restart`) may contain any reply of the policy in this episode, also
of other threads: `SampledReplies` finds its sampled ids.

Spelling differences in a reply cause no branch: a model that writes its JSON without blanks keeps those ids, although the
template would add blanks. Only text that the template shows or hides causes a branch.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sampler.core.parsers.reasoning import ends_in_reasoning
from sampler.core.rendering.images import ImagePlace, compared_ids, placeholder_of
from sampler.core.rendering.known_replies import START, SampledReplies, history_with
from sampler.core.rendering.reply_message import prefix_of, without_prefix
from sampler.core.rendering.resumed import RenderMemory
from sampler.core.rendering.sampled_reply import SampledReply, prompt_ending
from sampler.core.rendering.shown_reply import place_of
from sampler.core.rendering.template import ChatTemplate, Message, PromptTooLong, ToolSchema
from sampler.core.rendering.turn_format import CALL_ID, common_length, make_sentinel, turn_format
from shared.documents.content import references_in
from shared.documents.states import BranchCause
from shared.errors import ConfigError
from shared.tokens.grown_ids import GrownIds

Rewrites = Literal["branch", "keep"]
Sampled = SampledReply | Sequence[int]  # a reply that is known, or the ids of one that is not yet
MAX_SHOWN_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Prompt:
    """The next request: the first `shared_length` tokens of the last prompt and its reply, then `added`."""

    shared_length: int
    added: list[int]
    cause: BranchCause


# 21 methods: the ids of one thread, which every way of adding a message changes
class Context:
    """`ids`: the whole prompt of the next request, and `images` in it. One object per thread; the template may be shared; `known`
    and `now`, which some templates show, are shared by the threads of a policy in one episode."""

    def __init__(
        self,
        template: ChatTemplate,
        tools: Sequence[ToolSchema] | None = None,
        rewrites: Rewrites = "branch",
        known: SampledReplies | None = None,
        now: datetime | None = None,
    ) -> None:
        self.template = template
        self.tools = list(tools) if tools else None
        self.rewrites = rewrites
        self.format = turn_format(template)
        self.ids = GrownIds()
        self.images: tuple[ImagePlace, ...] = ()
        self._marked_tools = template.mark_tools(self.tools)
        self._now = now or datetime.now()
        self._messages: list[Message] = []
        self._references: list[Message] = []  # to the images in them, in order
        self._known = SampledReplies() if known is None else known
        self._thread = object()  # the same in every copy of this context
        self._history = START
        self._replies: list[SampledReply] = []  # replies in the current history
        self._reply_places: list[int] = []  # their indices among the messages
        self._call_ids: list[list[str]] = []  # call ids, for each reply as shown
        self._rendered_before = RenderMemory()
        self._text = ""  # the rendering behind the last prompt
        self._prefix = ""  # of the reply to the prompt
        self._encoded: dict[str, list[int]] = {}  # cache of text between replies, which recurs with every rewriting

    @property
    def has_replies(self) -> bool:
        """Whether the current history contains replies of the episode."""
        return bool(self._replies)

    @property
    def opens_reasoning(self) -> bool:
        """Whether the template opened the reasoning of the reply to the current prompt. What a message says opens none."""
        header = self.format.header
        is_plain = bool(header) and self._text.endswith(header)
        return ends_in_reasoning(header if is_plain else prompt_ending(self.format, self.template, self._text))

    def start(self, messages: Sequence[Message]) -> Prompt:
        """The first prompt."""
        self._retell(messages)
        self.replace_ids(self._compose(self._text))
        return Prompt(0, list(self.ids), BranchCause.CLEAN)

    def replace_ids(self, ids: Sequence[int]) -> None:
        """Other ids for the same text, as a template that shows the time has written them."""
        self.ids, self.images = GrownIds(ids), self._places(ids, self._text)

    @property
    def compared_ids(self) -> Sequence[int]:
        """The ids by which prompts are compared: of different images they differ."""
        return compared_ids(self.ids, self.images)

    def restart(self, messages: Sequence[Message], output: Sampled = (), message: Message | None = None) -> Prompt:
        """Replace the history, as a context policy does; shares the longest prefix with the last request and its reply.

        A message that is a reply of this episode (`SampledReplies`) keeps its sampled ids, even after other histories.
        """
        old = list(self.compared_ids)
        if isinstance(output, SampledReply) or output or message is not None:
            old += self.sampled(output, message).output_ids
        self._retell(messages)
        return self._branch(old, self._compose(self._text), BranchCause.CONTEXT_POLICY)

    def sampled(self, output: Sampled, message: Message | None = None) -> SampledReply:
        """The reply to the current prompt, known from now on; `message`: the reply as a message, for histories to match."""
        if isinstance(output, SampledReply):
            return output
        reply = SampledReply(self.format, self.template, output, message, self._text, self._prefix)
        if placeholder_of(self.template.images) not in reply.body_ids:  # in other histories it is text
            self._known.add(reply, self._history, self._thread)
        return reply

    def extend(self, output: Sampled, new_messages: Sequence[Message], message: Message | None = None) -> Prompt:
        """Append a reply and the messages that answer it; `message`: as in `sampled`.

        A reply without an end-of-turn token (length limit, stop string) gets one as the first of the added ids: a prompt
        token, neither sampled nor trained. Raises ConfigError if the template hides the reply.
        """
        if not new_messages:
            raise ValueError("extend needs the messages that answer the reply (tool results or a user's text)")
        before, reply = self._text, self.sampled(output, message)
        new_messages = self._begin_reply(new_messages)
        self._add_reply(reply, new_messages)
        self._render_new(new_messages)
        self._text = self._render()
        goes_on = self._text.startswith(before)
        shown = place_of(reply, self._text, len(before) - len(reply.opener) if goes_on else 0, self.template)
        if shown is None or shown.end < 0:
            raise ConfigError(
                "chat template: an assistant message in the middle of a conversation is not shown, or not followed by an "
                "end-of-turn token, so the end of a reply cannot be found; use a template that keeps each turn whole"
            )
        added = self._encode(new_text := self._text[shown.end :])
        stopped_by = reply.end_id
        continues = goes_on and shown.whole and stopped_by in (None, added[0])
        if not continues and self.rewrites == "branch":
            old = [*self.compared_ids, *reply.output_ids]
            return self._branch(old, self._compose(self._text), BranchCause.TEMPLATE_REWRITE)
        if stopped_by == added[0]:
            added = added[1:]
        shared = len(self.ids) + len(reply.output_ids)
        self.ids = self.ids.then(reply.output_ids, added)
        self.images += tuple(image.moved(shared) for image in self._places(added, new_text))
        return Prompt(shared, added, BranchCause.CLEAN)

    def fork(self, *, sharing: bool = False) -> "Context":
        """An independent copy: to compute a prompt that may never be sent. `sharing`: both go on knowing the same replies."""
        twin = copy.copy(self)
        twin.ids = self.ids.lent()
        twin._messages, twin._references = list(self._messages), list(self._references)
        twin._rendered_before = copy.copy(self._rendered_before)
        twin._replies, twin._reply_places = list(self._replies), list(self._reply_places)
        twin._call_ids = list(self._call_ids)
        twin._known = self._known if sharing else self._known.copy()
        return twin

    # ------------------------------------------------------------------ rendering

    def _retell(self, messages: Sequence[Message]) -> None:
        """Render another history, in which any reply of the episode may occur."""
        messages = self._begin_reply(messages)
        self._messages, self._references = [], []
        self._replies, self._reply_places, self._call_ids = [], [], []
        self._history = START
        pending: list[Message] = []
        for index, (entry, reply) in enumerate(zip(messages, self._known.among(messages, self._thread), strict=True)):
            if reply is None:
                pending.append(entry)
            else:
                self._render_new(pending)
                pending = []
                self._add_reply(reply, messages[index + 1 :])
        self._render_new(pending)
        self._text = self._render()

    def _begin_reply(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages before the beginning of the reply that the last one may be."""
        self._prefix = prefix_of(messages)
        return without_prefix(messages)

    def _render_new(self, messages: Sequence[Message]) -> None:
        """Append messages that the model did not write."""
        for message in messages:
            self._known.wrote(message, self._history, self._thread)
            self._history = history_with(self._history, message, None)
        shown = self.format.spoken(messages)
        self._messages += [self.template.mark(message) for message in shown]
        self._references += references_in(shown)

    def _add_reply(self, reply: SampledReply, following: Sequence[Message]) -> None:
        """Append a message of sentinels that called the tools whose results follow."""
        self._history = history_with(self._history, {}, reply)
        results = []
        for message in following:
            if message.get("role") != "tool":
                break
            results.append(str(message.get("tool_call_id", CALL_ID)))
        self._replies.append(reply)
        self._reply_places.append(len(self._messages))
        self._call_ids.append(results)
        self._messages.append(self.template.shaped(reply.as_message(results)))

    def _render(self) -> str:
        """Templates that accept only one call per turn are shown one, those that accept none are shown none: the sampled ids
        contain all calls anyway. Raises ConfigError."""
        refused: ConfigError | None = None
        for most_calls in (MAX_SHOWN_CALLS, 1, 0):
            for index, ids in enumerate(self._call_ids):
                if len(ids) > most_calls:
                    self._call_ids[index] = ids[:most_calls]
                    shown = self._replies[index].as_message(ids[:most_calls])
                    self._messages[self._reply_places[index]] = self.template.shaped(shown)
            try:
                return self._continued() if self._prefix else self._rendered(self._messages, True)
            except PromptTooLong:
                raise
            except ConfigError as exc:
                refused = refused or exc
        assert refused is not None
        raise refused

    def _rendered(self, messages: Sequence[Message], is_open: bool) -> str:
        text = self.template.render_prepared(messages, self._marked_tools, is_open, self._now, self._rendered_before)
        if self.template.images is not None:
            return self.template.images.named(text, self._references)
        if self._references:
            self.template.require_images()
            raise ConfigError("the model reads texts alone, and the messages have images")
        return text

    def _continued(self) -> str:
        """Up to the end of the prefix, as the template shows it in a whole reply."""
        sentinel = make_sentinel()
        prefix = self.template.special.mark(self._prefix)
        begun = self.template.shaped({"role": "assistant", "content": prefix + sentinel})
        text = self._rendered([*self._messages, begun], False)
        before, separator, _ = text.partition(sentinel)
        if not separator or not before.endswith(prefix.lstrip()):
            raise ConfigError(
                "chat template: the beginning of a reply cannot be continued, since the template shows it in another form; leave "
                "out the last message, of the assistant"
            )
        return before

    # ------------------------------------------------------------------ branches

    def _branch(self, old: Sequence[int], ids: list[int], cause: BranchCause) -> Prompt:
        self.replace_ids(ids)
        shared = common_length(old, self.compared_ids)
        return Prompt(shared, ids[shared:], cause)

    def _compose(self, text: str) -> list[int]:
        """Ids of a rendering: sampled ids for replies, encoded text elsewhere."""
        ids: list[int] = []
        cursor = 0
        for reply in self._replies:
            shown = place_of(reply, text, cursor, self.template)
            if shown is None:
                continue
            ids += self._encode(text[cursor : shown.start])
            ids += reply.body_ids if shown.whole else reply.ids_without_reasoning()
            cursor = shown.end if shown.end >= 0 else len(text)
        return ids + self._encode(text[cursor:])

    def _encode(self, marked: str) -> list[int]:
        """Text between replies begins at the start or with an end-of-turn token, so it encodes as in the whole text."""
        if not marked:
            return []
        if marked not in self._encoded:
            images = self.template.images
            self._encoded[marked] = self.template.encode_marked(marked) if images is None else images.encode(marked)
        return list(self._encoded[marked])

    def _places(self, ids: Sequence[int], named: str) -> tuple[ImagePlace, ...]:
        return self.template.images.places(ids, named) if self._references and self.template.images is not None else ()
