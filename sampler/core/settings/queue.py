"""Settings of how a process claims slots, holds them and lets them go."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from shared.configuration.sections import Section
from shared.documents.run import HEARTBEAT_S

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class QueueSettings(Section):
    """How the process claims slots, holds them and lets them go."""

    max_concurrent_episodes: Positive = Field(256, description="Maximum episodes that this process plays at once.")
    adaptive_concurrency: bool = Field(
        True,
        description="Play as many episodes at once as the engines take without a queue, a full cache or slow tokens. "
        "False: always max_concurrent_episodes.",
    )
    lease_s: Seconds = Field(
        60.0, description="A slot goes to another worker when its lease was not renewed for this long."
    )
    renew_s: Seconds = Field(15.0, description="Interval of lease renewals.")
    max_failures: Positive = Field(8, description="Infrastructure failures after which a slot fails for good.")
    retry_delay_s: Seconds = Field(
        2.0, description="Delay before a failed slot is retried; doubles with every failure."
    )
    grace_s: Seconds = Field(30.0, description="Time for running episodes to end after SIGTERM; the rest is released.")
    poll_s: Seconds = Field(
        0.3,
        description="Shortest interval of queries for work and for the trainer's progress. A signal triggers one; without "
        "signals the interval grows to 10 s.",
    )
    heartbeat_s: Seconds = Field(HEARTBEAT_S, description="Interval of this process's heartbeats.")
    episode_timeout_s: Seconds = Field(
        3600.0, description="Time-out of one episode; then it is an infrastructure failure."
    )
    open_all_tasks: bool = Field(
        False,
        description="Open all tasks at once, without waiting for a trainer: for evaluation or data generation only.",
    )

    @model_validator(mode="after")
    def leases_are_renewed_before_they_end(self) -> Self:
        if self.renew_s >= self.lease_s:
            raise ValueError(f"renew_s is {self.renew_s:g}; expected less than lease_s = {self.lease_s:g}")
        return self
