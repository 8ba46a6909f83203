"""What happens to a completed group: the settings, each with its meaning; docs/groups.md tells the whole story.

They are fields of the sampler's configuration. Every sampler of a policy should have the same ones: whichever of them settles
a group, settles it by its own.
"""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, Field, model_validator


class Advantage(StrEnum):
    MEAN = "mean"  # reward minus the group's mean: Dr. GRPO, MiniRL
    ZSCORE = "zscore"  # and divided by its standard deviation: GRPO
    LEAVE_ONE_OUT = "leave_one_out"  # reward minus the mean of the others: RLOO
    MAXRL = "maxrl"  # reward minus the mean, divided by the mean: MaxRL
    REWARD_TO_GO = "reward_to_go"  # by turn: what is earned from this turn on, minus its mean at this turn of the group
    GIGPO = "gigpo"  # by turn: of the episode, plus of the turn among all turns that saw the same


class GigpoMode(StrEnum):
    MEAN_NORM = "mean_norm"  # differences from the mean
    MEAN_STD_NORM = "mean_std_norm"  # and divided by the standard deviation


class GroupConfig(BaseModel):
    """Settings of settlement. Raises ValueError for combinations that mean nothing."""

    min_group_size: int = Field(2, gt=0, description="A group with fewer episodes to train on is abandoned.")
    min_turns: int = Field(0, ge=0, description="Correct episodes with fewer replies are dropped.")
    reserve_context_error_count: int | None = Field(
        None, ge=0, description="Over-long episodes to keep, by lot, of each group. None: all."
    )
    mask_overlong: bool = Field(
        False, description="Over-long episodes count in the group's baseline and have no loss themselves."
    )
    balance_sample: bool = Field(
        False, description="As many correct as wrong episodes: of the more numerous, some are dropped by lot."
    )
    zero_variance_tolerance: float | None = Field(
        None,
        gt=0,
        description="A group whose scores differ by less is dropped, and another task opened for it. None: kept.",
    )
    efficient_rewarding: bool = Field(
        False, description="Fewer turns earn more among the correct, more turns among the wrong; adds up to 0 in each."
    )
    efficient_rewarding_magnitude: float = Field(0.1, gt=0, description="The most that adds or takes.")
    advantage: Advantage = Field(Advantage.MEAN, description=", ".join(Advantage) + ".")
    adv_scaling: float = Field(1.0, gt=0, description="Every advantage is multiplied by this.")
    turn_discount: float = Field(1.0, ge=0, le=1, description="reward_to_go, gigpo: per turn of what comes later.")
    gigpo_weight: float = Field(1.0, ge=0, description="gigpo: of the turn's part; the episode's has weight 1.")
    gigpo_mode: GigpoMode = Field(GigpoMode.MEAN_NORM, description=", ".join(GigpoMode) + ".")
    gigpo_cross_steps: bool = Field(
        False, description="gigpo: the episodes' mean is over all their turns, so that long ones count more."
    )

    @model_validator(mode="after")
    def over_long_episodes_are_kept_to_be_masked(self) -> Self:
        if self.mask_overlong and self.reserve_context_error_count == 0:
            raise ValueError("mask_overlong keeps over-long episodes, reserve_context_error_count=0 drops them all")
        return self
