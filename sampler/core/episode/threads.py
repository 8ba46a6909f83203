"""The threads of one episode: as tokens for the engine, and as messages for the scorer.

An answered request adds its reply in one place, `replied`, whether it was just sampled or is read again from its documents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.core.episode.journal import Thread
from sampler.core.episode.resources import Resources
from sampler.core.parsers import ParsedReply, without_calls
from sampler.core.parsers.reasoning import ends_in_reasoning
from sampler.core.parsers.reply import END_THINK, THINK
from sampler.core.rendering.recorded import Parent
from sampler.core.rendering.reply_message import (
    Message,
    message_of,
    prefix_of,
    reply_words,
    with_call_ids,
    without_prefix,
)
from sampler.core.rendering.template import ToolSchema
from sampler.core.rendering.transcript import Transcript, joined
from sampler.core.rendering.turn import Turn
from sampler.core.rendering.view import PolicyTokens, View
from shared.documents import DispatchedSamplingTask
from shared.episodes.origin import EarlierTurn, Origin
from shared.episodes.state import EpisodeState, TurnState


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply as text, parsed, and as a message. `in_reasoning`: the prompt opened its reasoning."""

    text: str
    parsed: ParsedReply
    message: Message
    in_reasoning: bool


class EpisodeThreads:
    """`owner`: the policy of the task, whose messages the scorer sees."""

    def __init__(self, resources: Resources, owner: str) -> None:
        self._resources = resources
        self._owner = owner
        self._views: dict[Thread, View] = {}
        self._tokens: dict[str, PolicyTokens] = {}  # by policy
        self._transcripts: dict[str | None, Transcript] = {}  # by thread of the owner
        self._turns_before = 0  # of other episodes, that a fork goes on from: calls of all turns have ids of their own

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """Those that the owner has received and written, thread by thread (`sampler/core/rendering/transcript.py`)."""
        return joined(list(self._transcripts.values()))

    @property
    def has_threads(self) -> bool:
        return any(thread is not None for _, thread in self._views)

    def view(self, key: Thread, tools: Sequence[ToolSchema] | None) -> View:
        """Made by the thread's first request, with that one's tools."""
        if key not in self._views:
            self._views[key] = self.new_view(key, tools)
        return self._views[key]

    def copy_of(self, key: Thread, tools: Sequence[ToolSchema] | None) -> View:
        """A view like the thread's, to look at what a request would be."""
        return (self._views.get(key) or self.new_view(key, tools)).fork()

    def restore(self, key: Thread, view: View) -> None:
        self._views[key] = view

    def new_view(self, key: Thread, tools: Sequence[ToolSchema] | None) -> View:
        policy, thread = key
        template = self._resources.policy_client(policy).template
        tokens = self._tokens.setdefault(policy, PolicyTokens())
        return View(policy, thread, template, tools, self._resources.config.prompt.template_rewrites, tokens)

    # 7 parameters: a reply, and the request that it answers
    def replied(
        self,
        view: View,
        dispatch: DispatchedSamplingTask,
        parent: Parent,
        output_ids: Sequence[int],
        text: str,
        *,
        restart: bool = False,
        may_call: bool = True,
    ) -> Reply:
        """Add the reply to `dispatch`, whose prompt is the view's. `restart`: its messages were the whole history. `may_call`:
        whether calls in it are calls, or text."""
        number = self._turns_before + dispatch.turn
        whole = prefix_of(dispatch.messages) + text
        in_reasoning = view.context.opens_reasoning
        parsed = with_call_ids(self._parsed(whole, view, may_call=may_call, in_reasoning=in_reasoning), number)
        message = message_of(parsed)
        words = reply_words(message, whole, view.context.format.end_think)
        view.add_reply(dispatch.id, parent, output_ids, message, words)
        if view.policy == self._owner:
            shown = {"role": "assistant", "content": whole} if parsed.errors else message
            transcript = self._transcripts.setdefault(view.thread, Transcript())
            transcript.received(without_prefix(dispatch.messages), restart=restart)
            transcript.replied(shown, words)
        return Reply(text, parsed, message, in_reasoning)

    def _parsed(self, text: str, view: View, *, may_call: bool, in_reasoning: bool) -> ParsedReply:
        if in_reasoning and ends_in_reasoning(text, in_reasoning=True):  # never searched for calls
            return ParsedReply("", reasoning=text.strip())
        if in_reasoning and THINK in text.partition(END_THINK)[0].lstrip()[1:]:  # a word of reasoning that began before
            text = THINK + text
        parsed = self._resources.parser(text, view.context.tools or ())
        return parsed if may_call else without_calls(parsed, text)

    def resume(self, turn: TurnState, state: EpisodeState, tools: Sequence[ToolSchema]) -> Turn:
        """Add an answered request of a thread that never restarted, with the ids that its documents have."""
        return self._resume(EarlierTurn(turn, state.prompt_of(turn.number), turn.dispatch.messages), tools)

    def fork(self, origin: Origin, tools: Sequence[ToolSchema]) -> list[Turn]:
        """The turns of other episodes before the origin, whose prompt is that of the next request, token by token.

        Each prompt is made from the one before, as it was then: so it also is where `template_rewrites` keeps histories that
        the template would show otherwise now. Raises ConfigError where one has other ids.
        """
        dispatch, path = origin.dispatch, origin.path
        policy = dispatch.policy or self._owner
        begun = path[0].turn.dispatch.created_at if path else dispatch.created_at
        self._tokens[policy] = PolicyTokens(begun)
        view = self.view((policy, dispatch.thread), tools or None)
        turns = []
        for number, one in enumerate(path):
            self._turns_before = number - one.turn.number
            turns.append(self._resume(one, tools, as_stored=True))
        self._turns_before = len(path)
        twin = view.fork()
        twin.next_prompt(origin.messages, restart=False)
        twin.require_prompt(origin.prompt)
        view.begin_with(origin.prompt)
        return turns

    def _resume(self, earlier: EarlierTurn, tools: Sequence[ToolSchema], *, as_stored: bool = False) -> Turn:
        """`as_stored`: only if its prompt is what this process would write."""
        turn = earlier.turn
        dispatch = turn.dispatch.model_copy(update={"messages": list(earlier.messages)})
        response = dispatch.response
        assert response is not None, "the caller leaves out requests without a reply"
        if turn.policy not in self._tokens:
            self._tokens[turn.policy] = PolicyTokens(dispatch.created_at)
        view = self.view((turn.policy, turn.thread), tools or None)
        view.next_prompt(dispatch.messages, restart=False)
        if as_stored:
            view.require_prompt(earlier.prompt)
        view.context.replace_ids(earlier.prompt)  # a template may show the time: what was sampled counts
        if dispatch.service is not None:
            view.affinity[dispatch.sampled_by or ""] = dispatch.service  # which has the thread's KV cache
        parent = Parent(dispatch.parent if turn.parent is not None else None, turn.shared, turn.kind)
        may_call = dispatch.client is None or (bool(tools) and not dispatch.client.without_calls)
        reply = self.replied(view, dispatch, parent, turn.output_ids, response.text, may_call=may_call)
        finish = response.finish_reason
        return Turn(dispatch.id, reply.text, reply.message, reply.parsed, finish, turn.thread, dispatch.usage, response)
