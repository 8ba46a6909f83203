"""Collects the fields of an episode's record while the episode is played."""

from dataclasses import dataclass, field
from typing import Any

from shared.documents import DispatchedSamplingTask
from shared.documents.states import RecordStatus


@dataclass(slots=True)
class EpisodeLog:
    """Fields of the episode's record, and its status once it has ended."""

    status: RecordStatus = RecordStatus.RUNNING
    dispatches: list[str] = field(default_factory=list)
    num_tokens: int = 0
    versions: set[int] = field(default_factory=set)  # of the task's own policy
    other_versions: dict[str, set[int]] = field(default_factory=dict)  # of the other policies that took turns
    replies: dict[int, str] = field(default_factory=dict)  # of the task's own policy, by turn; without summaries
    answer: str | None = None
    turn_scores: dict[str, float] = field(default_factory=dict)  # by dispatch
    metrics: dict[str, float] = field(default_factory=dict)
    misconfigured: str | None = None  # the error, if retrying cannot fix it

    @property
    def last_reply(self) -> str:
        """The reply to the request that was asked last, of the task's own policy."""
        return self.replies[max(self.replies)] if self.replies else ""

    def replied(self, dispatch: DispatchedSamplingTask, owner: str) -> None:
        """Count an answered request. `owner`: the task's policy."""
        assert dispatch.response is not None, "an answered request has a reply"
        self.num_tokens += dispatch.usage["completion"]
        sampled_by = {version for version, _ in dispatch.weight_versions}
        if dispatch.policy not in (None, owner):
            self.other_versions.setdefault(str(dispatch.policy), set()).update(sampled_by)
            return
        self.replies[dispatch.turn] = dispatch.response.text
        if dispatch.sampled_by is None:
            self.versions |= sampled_by

    def values(self) -> dict[str, Any]:
        return {
            "traj": self.dispatches,
            "num_turns": len(self.dispatches),
            "num_tokens": self.num_tokens,
            "policy_versions": sorted(self.versions),
            "other_policy_versions": {policy: sorted(versions) for policy, versions in self.other_versions.items()},
            "answer": self.answer,
            "metrics": self.metrics,
        }
