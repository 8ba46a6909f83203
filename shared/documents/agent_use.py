"""A helper agent's work as the documents record it: a tool call's `summarized_by`, a judged record's `reward_details`.
They show which model summarized or judged, and which requests failed before.
"""

from pydantic import BaseModel, ConfigDict


class FailedRequest(BaseModel):
    """One request to a model that returned nothing usable, or that was not sent because the model is in its cool-down."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    service: str  # its base URL
    error: str


class AgentUse(BaseModel):
    """One answer of an agent. `model=None`: none of its models answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str  # browse_agent or scorer_agent
    model: str | None = None
    service: str | None = None
    failures: list[FailedRequest] = []  # in chronological order
    prompt_tokens: int | None = None  # of the answer; None if the service does not report it
    completion_tokens: int | None = None
    duration_s: float = 0.0  # failures and waits included
