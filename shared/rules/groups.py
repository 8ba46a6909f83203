"""The rules of completed groups: which episodes are trained on, and their advantages. Guide: docs/train/groups.md.

They are settings of the sampler, and a section of the run's rules (`shared/documents/rules.py`): the first process declares
them, and every group is settled by the rules that were in force when it was opened.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from shared.configuration.effect import require_effect
from shared.configuration.sections import Section
from shared.errors import ConfigError
from shared.user_code.registry import FunctionRegistry

ESTIMATORS: FunctionRegistry[Callable[..., Any]] = FunctionRegistry(
    "advantage", modules="advantage_modules", decorator="register_advantage"
)


class Advantage(StrEnum):
    MEAN = "mean"  # reward minus the group's mean: Dr. GRPO, MiniRL
    ZSCORE = "zscore"  # the same, divided by the group's standard deviation: GRPO
    LEAVE_ONE_OUT = "leave_one_out"  # reward minus the mean of the others: RLOO
    MAXRL = "maxrl"  # reward minus the mean, divided by the mean: MaxRL
    REWARD_TO_GO = "reward_to_go"  # by turn: return from this turn on, minus the group's mean return at this turn
    GIGPO = "gigpo"  # by turn: the episode's advantage plus the turn's, among all turns with the same observation


class GigpoMode(StrEnum):
    MEAN_NORM = "mean_norm"  # differences from the mean
    MEAN_STD_NORM = "mean_std_norm"  # the same, divided by the standard deviation


class GroupConfig(Section):
    """What decides how a group is settled. Raises ValueError for meaningless combinations."""

    min_group_size: int = Field(2, gt=0, description="Groups with fewer trainable episodes are abandoned.")
    min_turns: int = Field(0, ge=0, description="Correct episodes with fewer replies are dropped.")
    reserve_context_error_count: int | None = Field(
        None, ge=0, description="Maximum over-long episodes kept per group, chosen at random. None: all."
    )
    mask_overlong: bool = Field(False, description="Over-long episodes count in the group's baseline but have no loss.")
    balance_sample: bool = Field(
        False, description="Keep as many correct as wrong episodes: drop the surplus at random."
    )
    zero_variance_tolerance: float | None = Field(
        None,
        gt=0,
        description="Groups whose scores differ by less are dropped, and another task is opened instead. None: kept.",
    )
    efficient_rewarding: bool = Field(
        False,
        description="Reward fewer turns among correct episodes, and more turns among wrong ones; sums to 0 in each.",
    )
    efficient_rewarding_magnitude: float = Field(0.1, gt=0, description="Largest reward change by efficient_rewarding.")
    advantage: str = Field(
        Advantage.MEAN, description=f"{', '.join(Advantage)}, or one of your own that advantage_modules registers."
    )
    adv_scaling: float = Field(1.0, gt=0, description="Factor of all advantages.")
    turn_discount: float = Field(1.0, ge=0, le=1, description="reward_to_go, gigpo: discount per turn.")
    gigpo_weight: float = Field(
        1.0, ge=0, description="gigpo: weight of the turn's advantage; the episode's has weight 1."
    )
    gigpo_mode: GigpoMode = Field(GigpoMode.MEAN_NORM, description=", ".join(GigpoMode) + ".")
    gigpo_cross_steps: bool = Field(
        False, description="gigpo: average the episodes' rewards over turns, so that long episodes count more."
    )

    @model_validator(mode="after")
    def settings_of_an_estimator_have_it(self) -> Self:
        """Estimators of your own may read any of them."""
        is_own = self.advantage not in list(Advantage)
        by_turn = self.advantage in (Advantage.REWARD_TO_GO, Advantage.GIGPO)
        is_gigpo = self.advantage == Advantage.GIGPO
        require_effect(self, by_turn or is_own, "advantage = reward_to_go or gigpo", "turn_discount")
        require_effect(self, is_gigpo or is_own, "advantage = gigpo", "gigpo_weight", "gigpo_mode", "gigpo_cross_steps")
        require_effect(self, self.efficient_rewarding, "efficient_rewarding = true", "efficient_rewarding_magnitude")
        return self

    @model_validator(mode="after")
    def over_long_episodes_are_kept_to_be_masked(self) -> Self:
        if self.mask_overlong and self.reserve_context_error_count == 0:
            raise ValueError("mask_overlong keeps over-long episodes, but reserve_context_error_count=0 drops them all")
        return self


class SettlementRules(GroupConfig, frozen=True, extra="forbid"):
    """The rules that settlement reads, of one number."""

    untrained_policies: list[str] = Field(
        [], description="Policies that take turns and get no training data (frozen_policies, or all actors frozen)."
    )


def is_registered(estimator: str) -> bool:
    """Whether this process has the estimator."""
    try:
        ESTIMATORS.require(estimator, list(Advantage))
    except ConfigError:
        return False
    return True
