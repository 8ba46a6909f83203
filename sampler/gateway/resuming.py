"""Builds what the gateway knows of conversations from an attempt's turns: for a process that did not serve them.

Documents have each reply as the sampler keeps it; clients send it back as they were told, or as the text that was sampled. A
client is taken to do the one or the other in all of a conversation. If it does not, its next request begins a thread, in
which sampled replies keep their ids.
"""

from collections.abc import Sequence

from sampler.core.rendering.reply_message import without_prefix
from sampler.gateway.exchange import ReceivedMessage
from sampler.gateway.matching import (
    Line,
    Match,
    MatchCause,
    Matcher,
    ThreadMatch,
    next_line,
    system_and_rest,
    words_hash,
)
from shared.documents.states import Termination
from shared.episodes.state import EpisodeState, TurnState

Forms = Sequence[ReceivedMessage]
REFUSED = Termination.AGENT_CRASHED  # as a limit that was met: a request was refused for another reason


class ThreadMemory:
    """Fills a new `Matcher`, turn by turn."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._threads: dict[tuple[str, str | None], ThreadMatch] = {}
        self._forms: dict[tuple[str, int], Forms] = {}  # of a reply, by policy and words as the sampler keeps it

    def answered(self, turn: TurnState, message: ReceivedMessage, shown: Forms) -> None:
        """`message`: the reply as the sampler keeps it; `shown`: the forms in which the client may send it back."""
        thread, lines = self._thread_and_lines(turn)
        matcher, ends = self._matcher, list[Line]()
        for line, form in zip(lines, shown, strict=True):
            matcher.replied(Match(thread, [], MatchCause.CONTINUED, line), message, shown)
            ends.append(next_line(line, form))
        matcher.move_end(thread, ends)
        self._forms[turn.policy, words_hash(message)] = shown

    def waiting(self, turn: TurnState) -> ThreadMatch:
        """The thread of a request that another process asks for; nothing continues it until there is a reply."""
        thread, _ = self._thread_and_lines(turn)
        thread.busy = True
        return thread

    def _thread_and_lines(self, turn: TurnState) -> tuple[ThreadMatch, list[Line]]:
        """The thread, and the line behind the request's messages, in each form of the replies."""
        messages: Sequence[ReceivedMessage] = without_prefix(turn.dispatch.messages)
        key = (turn.policy, turn.thread)
        thread = self._threads.get(key)
        if thread is None:
            system, messages = system_and_rest(messages)
            thread = self._matcher.known_thread(turn.thread or "", turn.policy, system, turn.dispatch.tools_hash)
            self._threads[key] = thread
            starts = [hash(turn.policy)] * 2
        else:
            starts = list(thread.ends)
        return thread, [self._line(turn.policy, start, messages, form) for form, start in enumerate(starts)]

    def _line(self, policy: str, line: Line, messages: Sequence[ReceivedMessage], form: int) -> Line:
        for message in messages:
            forms = self._forms.get((policy, words_hash(message))) if message["role"] == "assistant" else None
            line = next_line(line, message if forms is None else forms[form])
        return line


def met_limit(state: EpisodeState) -> Termination | None:
    """The limit that a request met, unless a later one was answered."""
    limit = None if state.record.session is None else state.record.session.limit
    if limit is None or any(turn.number >= limit.turn and turn.reply is not None for turn in state.turns):
        return None
    return limit.termination
