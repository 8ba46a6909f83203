"""What an episode's record will say of it, gathered while it is played."""

from dataclasses import dataclass, field
from typing import Any

from shared.documents.states import RecordStatus


@dataclass(slots=True)
class EpisodeLog:
    """What the episode's record will say, and once it has ended, its status."""

    status: RecordStatus = RecordStatus.RUNNING
    dispatches: list[str] = field(default_factory=list)
    num_tokens: int = 0
    versions: set[int] = field(default_factory=set)  # of the task's own policy
    other_versions: dict[str, set[int]] = field(default_factory=dict)  # of others that took part
    last_reply: str = ""
    answer: str | None = None
    turn_scores: dict[str, float] = field(default_factory=dict)  # by dispatch
    metrics: dict[str, float] = field(default_factory=dict)
    misconfigured: str | None = None  # why it failed, where time mends nothing

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
