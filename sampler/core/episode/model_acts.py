"""Counts episodes in which the model did what would otherwise be a failure: they are scored, and people must hear of them.

    an episode ends, scored ─▶ its acts (`EpisodeLog.acts`: kind, an example) ─▶ its metrics `act_KIND`, and here
                                       many of the latest episodes have one ─▶ an alarm: the cause may be a bug after all

Evidence decides whose act it was, and a bug in an agent or a tool that shows only after the model's reply has the same evidence.
"""

from collections import deque
from collections.abc import Mapping

SEEN = 200  # the latest episodes
LEAST = 8  # episodes before their share says something
MANY = 0.25  # of the episodes
ADVICE = {
    "agent_crash": "ended because their agent failed after a reply of the model, and were scored as the model's act; "
    "if it is a bug of the agent, mend it, or set agent_crash to retry meanwhile",
    "tool_ended": "had a tool server whose process ended during one of their own calls, and the model read that as the call's "
    "error; if the server fails on harmless calls, mend it",
}


class ModelActs:
    """Of the episodes that one process plays."""

    def __init__(self) -> None:
        self._latest: deque[frozenset[str]] = deque(maxlen=SEEN)
        self._examples: dict[str, str] = {}

    def ended(self, acts: Mapping[str, str]) -> None:
        """An episode was scored."""
        self._latest.append(frozenset(acts))
        self._examples |= acts

    def alarms(self) -> list[str]:
        counts = {kind: sum(kind in acts for acts in self._latest) for kind in self._examples}
        return [
            f"{count} of the latest {len(self._latest)} episodes {ADVICE[kind]}; the last: {self._examples[kind]}"
            for kind, count in sorted(counts.items())
            if len(self._latest) >= LEAST and count >= MANY * len(self._latest)
        ]
