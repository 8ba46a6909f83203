"""Which recorded data a step trains on, how stale it may be, and how it is packed."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from shared.configuration.secrets import secret_field
from shared.configuration.sections import Section
from shared.names import RunName
from trainer.settings.normalizations import AdvantageNormalization

Positive = Annotated[int, Field(gt=0)]


class StaleData(StrEnum):
    KEEP = "keep"  # everything trains, with its importance weights; nothing is set aside and nothing waits for another
    WAIT = (
        "wait"  # a step takes the oldest tasks' groups and waits for those still played: bounds staleness, costs time
    )
    MASK = "mask"  # tokens beyond max_staleness have no loss: slow episodes lose their first turns, or everything
    DROP = "drop"  # a group with one token beyond max_staleness is set aside: slow groups are never trained


class OfflineSettings(Section):
    """Offline training on the records of another run."""

    switch: ClassVar = ("data_run", None)

    data_run: RunName = Field(
        description="Train offline on what another run has recorded, max_trained_count times, until it is used up; nothing is "
        "written there. Its versions say nothing here: every token has staleness 0. None: on what this run's samplers record."
    )
    data_db: str | None = secret_field(None, description="MongoDB of data_run. None: db_connection_string.")


class DataSettings(Section):
    """Which records a step trains on, how stale they may be, and how they are packed."""

    groups_per_step: Positive = Field(16, description="Groups (tasks) that one optimizer step consumes.")
    updates_per_step: Positive = Field(
        1, description="Optimizer updates per step, each on its own part of the step's groups."
    )
    max_tokens_per_row: Positive = Field(1024, description="Token budget of one forward (micro-batch).")
    max_staleness: int = Field(
        2,
        ge=0,
        description="Steps that samplers may be ahead, so the mean staleness of data at most (of all of it, if stale_data is "
        "not keep); 0: synchronous.",
    )
    stale_data: StaleData = Field(
        StaleData.KEEP,
        description="Data of slow episodes is staler. keep: it trains, with its importance weights. wait: a step takes the "
        "oldest tasks and waits until they are played, which bounds staleness and costs time. mask (staler tokens have no "
        "loss) and drop (their group is set aside) select against slow episodes: docs/train/staleness.md has the figures.",
    )
    max_trained_count: Positive = Field(1, description="How often one record may be trained.")
    retrained_interval: Positive = Field(1, description="Steps between two uses of a record.")
    prefetch: bool = Field(True, description="Read, merge and pack the next step's groups while this one is computed.")
    drop_last: bool = Field(
        False,
        description="When the tasks are used up and fewer than groups_per_step groups remain, leave them out. False: the last "
        "step is trained with what is there.",
    )
    wait_for_tasks_s: float | None = Field(
        10.0,
        ge=0,
        description="How long to wait for more tasks once all are played; then the trainer ends. null: until it is stopped, for "
        "a run whose tasks are imported as it goes.",
    )
    drop_zero_advantage: bool = Field(
        True, description="Spare the forward of records whose advantages are all 0: their gradient is 0 anyway."
    )
    max_resampled_groups: int = Field(
        0,
        ge=0,
        description="Dynamic sampling (DAPO): groups of equal rewards, so many for a step at most, are set aside and replaced "
        "by others; the ledger counts the bias. 0: they are trained along, without a gradient. A step of nothing else is never "
        "taken.",
    )
    minimal_advantage: float = Field(
        0.0,
        ge=0,
        description="Dispatches with an advantage between -this and this have no loss; records of nothing else are not "
        "forwarded. Denominators count them.",
    )
    skip_non_positive_advantage: bool = Field(
        False, description="The same for dispatches with an advantage of 0 or less: learn from what went well only."
    )
    advantage_normalization: str = Field(
        AdvantageNormalization.NONE,
        description="Over the step's batch: none, batch_std (divide by the rewards' standard deviation), source (mean 0 and "
        "standard deviation 1 over the trained tokens of each source), or one of your own that loss_modules registers.",
    )

    offline: OfflineSettings | None = None

    @model_validator(mode="after")
    def every_update_has_a_group(self) -> Self:
        if self.updates_per_step > self.groups_per_step:
            raise ValueError(
                f"updates_per_step is {self.updates_per_step}; expected at most groups_per_step={self.groups_per_step}"
            )
        return self
