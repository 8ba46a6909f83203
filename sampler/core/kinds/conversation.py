"""One conversation of an episode, and the part of it that the next request shows.

    reply ─▶ would the next prompt exceed the budget, or must it be compressed? ─no─▶ request: the new messages
                     │ yes
                     └─▶ another history ─▶ request with `restart`: a branch of the token tree, cause `context_policy`

The record keeps every reply, trained like any other; only the history that the model *sees* changes. A summary that the policy
writes is a separate request: its tokens are sampled, stored and trained like any other reply's, and appear as prompt text
in the history that follows.
"""

from collections.abc import Sequence
from dataclasses import replace

from sampler.core.api_models import BrowseAgent
from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.core.history.history import (
    History,
    Message,
    Round,
    discard_all,
    discard_all_tools,
    drop_repeats,
    summary_request,
    transcript,
)
from sampler.core.history.repetition import compared_text, times_repeated
from sampler.core.rendering.template import ToolSchema
from shared.documents.content import text_of
from shared.documents.states import DispatchStatus, Termination
from shared.rules.context import NewContext


class Conversation:
    """`sampler` sends and records; its configuration selects the context policy. Only the first request's `tools` count.
    `thread`: the conversation's name, in an episode with several. `restart`: `opening` takes the place of what the thread has."""

    def __init__(
        self,
        sampler: AsyncSampler,
        opening: Sequence[Message],
        tools: Sequence[ToolSchema],
        browse_agent: BrowseAgent | None = None,
        *,
        thread: str | None = None,
        restart: bool = False,
    ) -> None:
        self._sampler = sampler
        self._thread = thread
        self._config = sampler.config
        self._tools = tools
        self._browse_agent = browse_agent
        self._history = History(tuple(opening))
        self._new: list[Message] = list(opening)
        self._in_circles = False
        self._restart = restart
        self._is_given = False

    async def next_turn(self) -> Turn | Termination | None:
        """The policy's next reply, or what ends the episode. None: the reply was one repetition too many, and it and all before
        it are left out of the next request (`enable_repetition_compress`)."""
        turn = await self.reply()
        if turn is not None and self._is_repetition(turn):
            if not self._config.prompt.enable_repetition_compress:
                return Termination.REPETITION
            self._in_circles = True
            return None
        return self._sampler.ended_by(turn) or turn

    async def reply(self) -> Turn | None:
        """The policy's next reply; None if the context has no room for one even after the context policy."""
        rewrites = not self._is_given and (self._in_circles or await self._exceeds_budget())
        self._is_given = False
        if rewrites:
            history, most = await self._rewritten(), self._config.budget_tokens
            if history is None or await self._tokens_sent(history.messages(), restart=True) > most:
                return None
            self._history, self._new, self._in_circles = history, history.messages(), False
        restart, self._restart = rewrites or self._restart, False
        return await self._sampler.create_chat_completions(
            self._new, tools=self._tools, restart=restart, thread=self._thread
        )

    def answer(self, turn: Turn, messages: Sequence[Message]) -> None:
        """Add the messages of tools or user that answer the last reply."""
        self._history = self._history.then(Round(turn.message, tuple(messages), compared_text(turn)))
        self._new = list(messages)

    def go_on_after(self, turns: Sequence[Turn], answers: Sequence[Sequence[Message]]) -> None:
        """Turns of another episode came before, each with the messages that answered it: the next request is as it was there."""
        for turn, messages in zip(turns, answers, strict=True):
            self.answer(turn, messages)
        self._new, self._restart, self._is_given = self._history.messages(), bool(turns), True

    # ------------------------------------------------------------------ inside

    def _is_repetition(self, turn: Turn) -> bool:
        """Whether the last reply repeats often enough to end the episode. A repeated reply is marked as such."""
        limit = self._config.prompt.repetition_early_stop_times
        times = times_repeated(self._history, turn) if limit > 0 else 1
        if times > 1:
            self._sampler.mark(DispatchStatus.REPEAT_ERROR, turn=turn)
        return 0 < limit <= times

    async def _exceeds_budget(self) -> bool:
        if self._config.prompt.new_context is NewContext.DISABLED or not self._history.rounds:
            return False
        return await self._tokens_sent(self._new) > self._config.budget_tokens

    async def _rewritten(self) -> History | None:
        """None: no room to request a summary."""
        history = drop_repeats(self._history) if self._in_circles else self._history
        if not history.rounds:
            return history
        if self._config.prompt.new_context is NewContext.DISCARD_ALL_TOOLS:
            return discard_all_tools(history, self._tokens_of, self._config.budget_tokens)
        if self._browse_agent is not None and self._config.prompt.context_summary == "browse_agent":
            purpose = f"What has been done and found out for this task, and what is still open: {_query(history)}"
            return discard_all(history, await self._browse_agent.summarize(transcript(history), purpose))
        return await self._summarized_by_the_policy(history)

    async def _summarized_by_the_policy(self, history: History) -> History | None:
        """Request it after the newest results; if a whole reply does not fit after them, drop them first."""
        sampler, restart = self._sampler, self._in_circles
        last = history.rounds[-1]
        for newest in (last, last.cleared()):
            shown = replace(history, rounds=(*history.rounds[:-1], newest)).messages()
            request = summary_request(shown if restart else newest.answers)
            if (
                await self._tokens_sent(request, restart=restart) + self._config.budget.max_new_tokens
                <= self._config.budget.max_tokens
            ):
                break
        turn = await sampler.create_chat_completions(request, restart=restart, thread=self._thread)
        if turn is None:
            return None
        sampler.episode.replies.pop(turn.number, None)  # a summary is not an answer
        return discard_all(history, turn.parsed.content.strip() or turn.text.strip())

    def _tokens_of(self, history: History) -> int:
        """What is new in it is short, or is in `_new`."""
        return self._sampler.prompt_tokens(history.messages(), restart=True, thread=self._thread)

    async def _tokens_sent(self, messages: Sequence[Message], *, restart: bool = False) -> int:
        await self._sampler.encode_ahead(messages, restart=restart, thread=self._thread)
        return self._sampler.prompt_tokens(messages, restart=restart, thread=self._thread)


def _query(history: History) -> str:
    return text_of(history.opening[-1]["content"])
