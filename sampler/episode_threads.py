"""The threads of one episode: as tokens for the engine, and as messages for the scorer.

An answered request adds its reply in one place, `replied`, whether it was just sampled or is read again from its documents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.journal import Thread
from sampler.messages.reply_message import Message, message_of, with_call_ids
from sampler.messages.transcript import Transcript, joined
from sampler.parsers import ParsedReply
from sampler.rendering.recorded import Parent
from sampler.rendering.template import ToolSchema
from sampler.rendering.view import PolicyTokens, View
from sampler.rendering.words import reply_words
from sampler.resources import Resources
from sampler.turn import Turn
from shared.documents import DispatchedSamplingTask
from shared.episodes.state import EpisodeState, TurnState


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply as text, parsed, and as a message."""

    text: str
    parsed: ParsedReply
    message: Message


class EpisodeThreads:
    """`owner`: the policy of the task, whose messages the scorer sees."""

    def __init__(self, resources: Resources, owner: str) -> None:
        self._resources = resources
        self._owner = owner
        self._views: dict[Thread, View] = {}
        self._tokens: dict[str, PolicyTokens] = {}  # by policy
        self._transcripts: dict[str | None, Transcript] = {}  # by thread of the owner

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """Those that the owner has received and written, thread by thread (`sampler/messages/transcript.py`)."""
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
        return View(policy, thread, template, tools, self._resources.config.template_rewrites, tokens)

    def replied(
        self,
        view: View,
        dispatch: DispatchedSamplingTask,
        parent: Parent,
        output_ids: Sequence[int],
        text: str,
        *,
        restart: bool = False,
    ) -> Reply:
        """Add the reply to `dispatch`, whose prompt is the view's. `restart`: its messages were the whole history."""
        parsed = with_call_ids(self._resources.parser(text, view.context.tools or ()), dispatch.turn)
        message = message_of(parsed)
        words = reply_words(message, text, view.context.format.end_think)
        view.add_reply(dispatch.id, parent, output_ids, message, words)
        if view.policy == self._owner:
            said = {"role": "assistant", "content": text} if parsed.errors else message
            transcript = self._transcripts.setdefault(view.thread, Transcript())
            transcript.told(dispatch.messages, restart=restart)
            transcript.replied(said, words)
        return Reply(text, parsed, message)

    def resume(self, turn: TurnState, state: EpisodeState, tools: Sequence[ToolSchema]) -> Turn:
        """Add an answered request of a thread that never restarted, with the ids that its documents have."""
        dispatch, response = turn.dispatch, turn.dispatch.response
        assert response is not None, "the caller leaves out requests without a reply"
        if turn.policy not in self._tokens:
            self._tokens[turn.policy] = PolicyTokens(dispatch.created_at)
        view = self.view((turn.policy, turn.thread), tools or None)
        view.next_prompt(dispatch.messages, restart=False)
        view.context.ids = state.prompt_of(turn.number)  # a template may show the time: what was sampled counts
        if dispatch.service is not None:
            view.affinity[dispatch.sampled_by or ""] = dispatch.service  # which has the thread's KV cache
        parent = Parent(dispatch.parent if turn.parent is not None else None, turn.shared, turn.kind)
        reply = self.replied(view, dispatch, parent, turn.output_ids, response.text)
        return Turn(
            dispatch.id, reply.text, reply.message, reply.parsed, response.finish_reason, turn.thread, dispatch.usage
        )

    def fork(self, state: EpisodeState, number: int, tools: Sequence[ToolSchema]) -> list[Turn]:
        """The turns of another episode before turn `number`, whose prompt is that of the next request, token by token."""
        asked = state.turns[number]
        self._tokens[asked.policy] = PolicyTokens(state.turns[0].dispatch.created_at)
        turns = [self.resume(turn, state, tools) for turn in state.turns[:number]]
        self.view((asked.policy, asked.thread), tools or None).begin_with(state.prompt_of(number))
        return turns
