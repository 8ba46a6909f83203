"""Which conversation a request continues, and which of its messages are replies that the engine sampled.

    recorded   S Q | r1 (calls) | t1 | r2          the request S Q r1' t1' r2' Q2 continues it if r1', t1', r2' say the same
                                                   ─▶ only Q2 is new; everything before keeps its ids
    S Q r1' t2                                     another thread; r1' is the sampled r1, so its ids are kept there too
    S Q x Q2                                       x was never sampled: the client's own text, encoded as such

Messages are compared by what they say: arguments by value, images by their digests, null and "" and absent alike, surrounding
blanks, call ids and reasoning left out, since clients drop or rewrite those. A reply is looked for after the same messages
first, then by what it says alone (a history that the client shortened), the newest first. `head_lines`: lines at the beginning
of the system prompt that may differ between requests of one conversation; the conversation keeps those of its first request.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sampler.core.rendering.template import ToolSchema
from sampler.gateway.exchange import ReceivedMessage
from shared.documents.tool_schemas import hash_of

Line = int  # a hash of a policy, tools, and all messages up to one: equal for conversations that say the same


class MatchCause(StrEnum):
    """Why a request was given to a thread, counted by episode."""

    CONTINUED = "continued"  # it continues a thread: only what is new is encoded
    FIRST = "first"  # the policy's first request
    AGAIN = "again"  # the same messages as an earlier request: a second sample
    TOOLS = "tools"  # it would continue a thread with other tools
    SYSTEM = "system"  # it would continue a thread with another system prompt
    REWRITTEN = "rewritten"  # where a reply was sampled it has another assistant message
    SHORTENED = "shortened"  # it has sampled replies, but not all messages before them
    OTHER = "other"  # another conversation: a sub-agent, or a history that was replaced by a summary


@dataclass(slots=True)
class ThreadMatch:
    """One conversation with the gateway. `system`: as the first request had it."""

    name: str
    policy: str
    system: str
    tools: str
    busy: bool = False
    ends: list[Line] = field(default_factory=list)  # up to its last reply, in each form of that


@dataclass(frozen=True, slots=True)
class Match:
    """`messages`: those to send: what is new in `thread`, or, if that is new, the whole history, with every sampled reply in
    it replaced by the very message that the sampler made of it."""

    thread: ThreadMatch
    messages: list[ReceivedMessage]
    cause: MatchCause
    line: Line  # of the whole request


@dataclass(slots=True)
class Matcher:
    head_lines: int = 0
    _ends: dict[Line, list[ThreadMatch]] = field(default_factory=dict)  # by all messages up to the last reply
    _sampled_after: set[Line] = field(default_factory=set)  # after which a reply was sampled
    _after: dict[tuple[Line, int], ReceivedMessage] = field(default_factory=dict)  # replies by line and words
    _saying: dict[tuple[str, int], ReceivedMessage] = field(default_factory=dict)  # the newest, by policy and words
    _policies: set[str] = field(default_factory=set)
    _threads: int = 0

    def match(self, policy: str, messages: Sequence[ReceivedMessage], tools: Sequence[ToolSchema]) -> Match:
        """The thread is busy until `replied` or `failed`."""
        system, rest = system_and_rest(messages)
        lines = _lines(policy, rest)
        tools_hash = hash_of(tools)
        ended = [
            (at, one) for at in range(len(rest) - 1, 0, -1) for one in self._ends.get(lines[at], ()) if not one.busy
        ]
        for at, thread in ended:
            if thread.tools == tools_hash and self._same(thread.system, system):
                thread.busy = True
                return Match(thread, list(rest[at:]), MatchCause.CONTINUED, lines[-1])
        cause = self._cause(policy, rest, lines, tools_hash, [thread for _, thread in ended])
        self._policies.add(policy)
        self._threads += 1
        thread = ThreadMatch(f"t{self._threads}", policy, system, tools_hash, busy=True)
        return Match(thread, [*_head(messages), *self._with_replies(policy, rest, lines)], cause, lines[-1])

    def replied(self, match: Match, message: ReceivedMessage, shown: Sequence[ReceivedMessage]) -> None:
        """`message`: the sampler's own; `shown`: the forms in which the client may send it back."""
        thread = match.thread
        self._sampled_after.add(match.line)
        for words in {words_hash(one) for one in shown}:
            self._after[match.line, words] = message
            self._saying[thread.policy, words] = message
        self.move_end(thread, [next_line(match.line, one) for one in shown])
        thread.busy = False

    def move_end(self, thread: ThreadMatch, ends: Sequence[Line]) -> None:
        """The thread goes on behind these lines, one for each form of its last reply."""
        for line in set(thread.ends):
            self._ends[line].remove(thread)
        thread.ends = list(ends)
        for line in set(ends):
            self._ends.setdefault(line, []).append(thread)

    def known_thread(self, name: str, policy: str, system: str, tools: str) -> ThreadMatch:
        """A thread that another process began."""
        self._policies.add(policy)
        number = name.removeprefix("t")
        self._threads = max(self._threads, int(number) if number.isdecimal() else 0)
        return ThreadMatch(name, policy, system, tools)

    def failed(self, match: Match) -> None:
        """No reply: the thread may be continued from where it was."""
        match.thread.busy = False

    def _same(self, known: str, system: str) -> bool:
        if known == system:
            return True
        ours, theirs = known.splitlines(), system.splitlines()
        common = 0
        for mine, other in zip(reversed(ours), reversed(theirs), strict=False):
            if mine != other:
                break
            common += 1
        return common > 0 and max(len(ours), len(theirs)) - common <= self.head_lines

    def _with_replies(
        self, policy: str, rest: Sequence[ReceivedMessage], lines: Sequence[Line]
    ) -> list[ReceivedMessage]:
        merged = []
        for at, message in enumerate(rest):
            reply = None
            if message["role"] == "assistant":
                words = words_hash(message)
                reply = self._after.get((lines[at], words)) or self._saying.get((policy, words))
            merged.append(message if reply is None else reply)
        return merged

    def _cause(
        self,
        policy: str,
        rest: Sequence[ReceivedMessage],
        lines: Sequence[Line],
        tools: str,
        ended: Sequence[ThreadMatch],
    ) -> MatchCause:
        if policy not in self._policies:
            return MatchCause.FIRST
        if lines[-1] in self._sampled_after:
            return MatchCause.AGAIN
        if ended:
            return MatchCause.TOOLS if ended[0].tools != tools else MatchCause.SYSTEM
        ours = [at for at, message in enumerate(rest) if message["role"] == "assistant"]
        if any(
            lines[at] in self._sampled_after and (lines[at], words_hash(rest[at])) not in self._after for at in ours
        ):
            return MatchCause.REWRITTEN
        return (
            MatchCause.SHORTENED
            if any((policy, words_hash(rest[at])) in self._saying for at in ours)
            else MatchCause.OTHER
        )


def words_hash(message: Mapping[str, Any]) -> int:
    """Equal for messages that say the same."""
    calls = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True, default=str))
        for call in message.get("tool_calls") or ()
    ]
    return hash((message["role"], _shown(message.get("content")), tuple(calls)))


def _shown(content: Any) -> Any:
    """What a content says: a text, or texts and digests of images."""
    if not isinstance(content, list):
        return str(content or "").strip()
    return tuple((block["type"], block.get("sha256") or str(block.get("text", "")).strip()) for block in content)


def system_and_rest(messages: Sequence[ReceivedMessage]) -> tuple[str, list[ReceivedMessage]]:
    """The system prompt, and the messages behind it."""
    head = _head(messages)
    return "\n".join(message["content"] for message in head), list(messages[len(head) :])


def _head(messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
    """The system messages at the beginning."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    return list(messages[:count])


def _lines(policy: str, rest: Sequence[ReceivedMessage]) -> list[Line]:
    """`[i]`: of the first i messages."""
    lines = [hash(policy)]
    for message in rest:
        lines.append(next_line(lines[-1], message))
    return lines


def next_line(line: Line, message: ReceivedMessage) -> Line:
    """The line of the same messages and this one."""
    return hash((line, words_hash(message)))
