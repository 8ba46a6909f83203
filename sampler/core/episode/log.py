"""Collects the fields of an episode's record while the episode is played."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sampler.core.rendering.reply_message import prefix_of
from sampler.core.scorers.scored_text import ScoredText
from shared.documents import DispatchedSamplingTask, ToolCallResult
from shared.documents.actors import Seated, seat_of
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
    begun_in_reasoning: set[int] = field(default_factory=set)  # turns whose prompt opened the reasoning
    answer: str | None = None
    final_score: float | None = (
        None  # it counts even if the episode's time ends; nothing was requested since it was given
    )
    seeks_answer: bool = False  # its scorer was given the answer that the reply has in the task's form
    cut_replies: int = 0  # by the limit of tokens
    offers_tools: bool = False  # the model read of some; this process, an environment or an agent runs them
    calls_tools: bool = False  # a reply called one
    tool_calls: dict[str, tuple[ToolCallResult, ...]] = field(default_factory=dict)  # by dispatch
    turn_scores: dict[str, float] = field(default_factory=dict)  # by dispatch
    metrics: dict[str, float] = field(default_factory=dict)
    acts: dict[str, str] = field(
        default_factory=dict
    )  # failures that the model caused (`sampler/core/episode/model_acts.py`), with an example
    actors: dict[str, Seated] = field(default_factory=dict)  # by seat, of an episode that actors play
    utterances: list[dict[str, str]] = field(default_factory=list)  # by actors: seat, actor, content
    awaits_group: bool = False  # its score is known when its group has been scored
    leaves_group_open: bool = False  # it is scored, and other slots of its group are not
    failure: str | None = None  # the error, if it ended in one
    misconfigured: bool = False  # retrying cannot fix the failure

    @property
    def last_reply(self) -> str:
        """The reply to the request that was asked last, of the task's own policy."""
        return self.replies[max(self.replies)] if self.replies else ""

    @property
    def last_scored(self) -> ScoredText:
        """The last reply, and where its answer is looked for."""
        turn = max(self.replies, default=-1)
        return ScoredText(self.last_reply, turn in self.begun_in_reasoning)

    def replied(self, dispatch: DispatchedSamplingTask, owner: str) -> None:
        """Count an answered request. `owner`: the task's policy."""
        assert dispatch.response is not None, "an answered request has a reply"
        self.cut_replies += dispatch.response.finish_reason == "length"
        self.offers_tools |= bool(dispatch.tools_hash)
        self.calls_tools |= bool(dispatch.response.message.get("tool_calls"))
        self.num_tokens += dispatch.usage.get("completion", 0)  # an API model samples no tokens of ours
        sampled_by = {version for version, _ in dispatch.weight_versions}
        self._count_seat(dispatch, sampled_by)
        if dispatch.policy not in (None, owner):
            self.other_versions.setdefault(str(dispatch.policy), set()).update(sampled_by)
            return
        self.replies[dispatch.turn] = prefix_of(dispatch.messages) + dispatch.response.text
        if dispatch.response.in_reasoning:
            self.begun_in_reasoning.add(dispatch.turn)
        if dispatch.sampled_by is None:
            self.versions |= sampled_by

    def _count_seat(self, dispatch: DispatchedSamplingTask, versions: set[int]) -> None:
        name = seat_of(dispatch.thread)
        seat = self.actors.get(name)
        if seat is not None:
            served = sorted(versions.union(seat.versions))
            self.actors[name] = seat.model_copy(update={"turns": seat.turns + 1, "versions": served})

    def score_seats(self, scores: Mapping[str, float]) -> None:
        """Each one's own, where the scorer gave one."""
        for name, score in scores.items():
            self.actors[name] = self.actors[name].model_copy(update={"score": float(score)})

    def values(self) -> dict[str, Any]:
        actors = {name: seat.to_mongo() for name, seat in self.actors.items() if seat.turns}
        return {
            **({"actors": actors} if actors else {}),
            "traj": self.dispatches,
            "num_turns": len(self.dispatches),
            "num_tokens": self.num_tokens,
            "policy_versions": sorted(self.versions),
            "other_policy_versions": {policy: sorted(versions) for policy, versions in self.other_versions.items()},
            "answer": self.answer,
            "metrics": self.metrics | {f"act_{kind}": 1.0 for kind in self.acts},
        }
