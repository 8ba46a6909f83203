"""What a helper agent of the sampler did, as it stands in the documents: a tool call's `summarized_by`, a judged record's
`reward_details`. So it can be read from the data who summarized or judged, and what failed before.
"""

from pydantic import BaseModel, ConfigDict


class FailedRequest(BaseModel):
    """One request to a model that gave nothing usable, or was not sent because the model is left alone for a while."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    service: str  # its base URL
    error: str


class AgentUse(BaseModel):
    """One answer of an agent. `model=None`: no model of it answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str  # browse_agent or scorer_agent
    model: str | None = None
    service: str | None = None
    failures: list[FailedRequest] = []  # in the order in which they happened
    prompt_tokens: int | None = None  # of the answer; None where the service does not say
    completion_tokens: int | None = None
    duration_s: float = 0.0  # failures and waits included
