"""How a task is scored: one scorer, or several by weight."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.names import LONGEST

MAX_SCORERS = 20
MAX_WEIGHT = 1e6


class WeightedScorer(BaseModel):
    """The score is the sum of weight times value. Weight 0: a metric only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=LONGEST)
    weight: float = Field(1.0, strict=True, ge=-MAX_WEIGHT, le=MAX_WEIGHT)


def repeated(scorers: "list[WeightedScorer]") -> str | None:
    """A name that occurs twice."""
    names = [one.name for one in scorers]
    return next((name for name in names if names.count(name) > 1), None)


class GroupScore(BaseModel):
    """What a group scorer said of a group. `values` and `reasons` are by slot; None: an episode without a score. `metrics`: of
    the judging itself (tokens, seconds, disagreement), the same for each record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scorer: str
    metric: str  # the name of its values
    weight: float
    values: list[float | None]
    reasons: list[str | None]
    metrics: dict[str, float] = {}

    def metrics_of(self, traj_id: int) -> dict[str, float]:
        """Of the record of a slot."""
        value = self.values[traj_id]
        return self.metrics | ({} if value is None else {self.metric: value})


class Scoring(BaseModel):
    """The work of group scorers on a completed group. `attempt` fences its writes; `error` is the last failure's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int = 0
    failures: int = 0
    given_up: bool = False  # its scorers failed too often: the group is abandoned
    error: str | None = None


def of_group(scorers: Sequence[WeightedScorer]) -> dict[str, Any]:
    """The field of a slot; without scorers none, as earlier versions know it."""
    return {"group_scorers": [one.model_dump() for one in scorers]} if scorers else {}
