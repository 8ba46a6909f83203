"""The settings of a loss, each with its meaning: the text of `python -m trainer --help`. Presets are sets of these values."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from shared.configuration.sections import Section, flat_values, settings_of
from shared.files.hub import ModelFolder
from shared.user_code.registry import FunctionRegistry

LOSSES: FunctionRegistry[Callable[..., Any]] = FunctionRegistry(
    "loss", modules="loss_modules", decorator="register_loss"
)


class LossName(StrEnum):
    MINIRL = "MINIRL"  # masked, capped importance-weighted policy gradient: off-policy data, many turns
    GRPO = "GRPO"  # PPO's clipped surrogate; also of DAPO, Dr.GRPO and decoupled PPO, by their settings
    GSPO = "GSPO"  # PPO's surrogate on the ratio of the whole trajectory
    GSPO_TOKEN = "GSPO-token"  # its form with an advantage per token
    CISPO = "CISPO"  # policy gradient weighted by the clipped ratio: no token loses its gradient
    REINFORCE = "REINFORCE"  # policy gradient; with rollout_is it is truncated importance sampling (TIS)
    DPPO = "DPPO"  # trust region by the change of probability (total variation), not by the ratio
    SAPO = "SAPO"  # a soft gate instead of a clip
    ASPO = "ASPO"  # inverse ratio for positive advantages
    CROSS_ENTROPY = "CrossEntropy"  # supervised: advantages and old log-probs are ignored


class Aggregation(StrEnum):
    TOKEN_MEAN = "token-mean"  # ω = 1 / trained tokens
    SEQUENCE_MEAN = "seq-mean-token-mean"  # ω = 1 / (trajectories · trained tokens of this trajectory)
    SEQUENCE_SUM = "seq-mean-token-sum"  # ω = 1 / (trajectories · length_scale)
    TOKEN_SUM = "token-sum"  # ω = 1


class ClipAnchor(StrEnum):
    ROLLOUT = "rollout"  # the clipped ratio is against the policy that sampled
    PROXIMAL = "proximal"  # against the trainer's policy before the first update of the batch


class ProximalLogprobs(StrEnum):
    RECOMPUTE = "recompute"  # exact; costs a forward only when a step has several updates
    LOGLINEAR = "loglinear"  # interpolated by the token's staleness, A-3PO: never a forward


class RolloutIs(StrEnum):
    NONE = "none"  # no weight
    TOKEN = "token"  # min(x, cap): TIS
    SEQUENCE = "sequence"  # min(Π x over the trajectory, cap)


class KlEstimator(StrEnum):
    K1 = "k1"  # d = ℓ − ℓref; on-policy its own gradient has mean 0: use with kl_off_policy
    K2 = "k2"  # d²/2, with the gradient of KL(π‖ref)
    K3 = "k3"  # exp(−d) + d − 1, with the gradient of KL(ref‖π), or with kl_off_policy of KL(π‖ref)
    K1_PLUS = "k1+"  # the value of k1 with the gradient of k2: "k1 in the reward"
    K3_PLUS = "k3+"  # the value of k3 with the gradient of k2


WEIGHTED_ALREADY = {LossName.MINIRL, LossName.DPPO}  # by ρ, at either anchor
BUNDLED = set(LossName)
CLIPPING = BUNDLED - {LossName.REINFORCE, LossName.CROSS_ENTROPY}
USED_BY = {  # settings that only some losses look at
    "epsilon": CLIPPING,
    "epsilon_higher": CLIPPING,
    "strict_in_bound": CLIPPING,
    "out_of_date_decay": CLIPPING,
    "dual_clip": {LossName.GRPO, LossName.GSPO, LossName.GSPO_TOKEN, LossName.ASPO},
    "sapo_temperature_positive": {LossName.SAPO},
    "sapo_temperature_negative": {LossName.SAPO},
    "log_ratio_penalty": {LossName.DPPO},
}
TOKEN_LEVEL = {LossName.CROSS_ENTROPY, LossName.CISPO, LossName.DPPO, LossName.REINFORCE}
TOKEN_SUM = {LossName.MINIRL}
MASKS = (
    "token_mask_low",
    "token_mask_high",
    "sequence_mask_low",
    "sequence_mask_high",
    "geometric_mask_low",
    "geometric_mask_high",
    "k3_mask_high",
    "veto_low",
    "opsm_threshold",
)


class AveragingSettings(Section):
    """How the losses of tokens become one number."""

    token_level_loss: bool | None = Field(None, description="Mean over tokens. None: as in the loss's source.")
    skip_length_normalization: bool | None = Field(
        None, description="Sum over a trajectory's tokens, not their mean. None: as in the loss's source."
    )
    loss_aggregation: Aggregation | None = Field(None, description="Replaces the two settings above. None: they apply.")
    length_scale: float = Field(1.0, gt=0, description="Constant divisor of a token sum (not of token-sum itself).")


class CorrectionSettings(Section):
    """Corrections for tokens whose probability differs between the trained policy and the policy that sampled them."""

    rollout_is: RolloutIs = Field(RolloutIs.NONE, description="Weight against engine-trainer mismatch (TIS).")
    rollout_is_cap: float = Field(2.0, gt=0, description="Upper limit of that weight.")
    token_mask_low: float | None = Field(None, gt=0, description="Drop tokens with a ratio below (IcePop, MIS).")
    token_mask_high: float | None = Field(None, gt=0, description="Drop tokens with a ratio above (IcePop, MIS).")
    sequence_mask_low: float | None = Field(None, gt=0, description="Drop trajectories: product of ratios below.")
    sequence_mask_high: float | None = Field(None, gt=0, description="Drop trajectories: product of ratios above.")
    geometric_mask_low: float | None = Field(None, gt=0, description="Drop trajectories: geometric mean below.")
    geometric_mask_high: float | None = Field(None, gt=0, description="Drop trajectories: geometric mean above.")
    k3_mask_high: float | None = Field(None, gt=0, description="Drop trajectories: mean of x - log x - 1 above.")
    veto_low: float | None = Field(None, gt=0, description="Drop trajectories that have one token's ratio below.")
    opsm_threshold: float | None = Field(
        None,
        description="Drop trajectories with A < 0 and mean(old - new) above this, old of the policy that sampled, at either "
        "clip_anchor (off-policy sequence masking).",
    )

    @model_validator(mode="after")
    def a_mask_leaves_room_between_its_bounds(self) -> Self:
        for kind in ("token_mask", "sequence_mask", "geometric_mask"):
            low, high = getattr(self, f"{kind}_low"), getattr(self, f"{kind}_high")
            if low is not None and high is not None and low >= high:
                raise ValueError(
                    f"{kind}_low is {low} and {kind}_high {high}: everything would be dropped; expected low < high"
                )
        return self


class KlSettings(Section):
    """A term that keeps the policy near a frozen reference model."""

    switch: ClassVar = ("kl_coefficient", 0.0)

    kl_coefficient: float = Field(
        gt=0,
        description="Coefficient of the KL to a frozen reference model. 0, or no section: no KL term, and no "
        "reference model is loaded.",
    )
    reference_model: ModelFolder | None = Field(
        None,
        description="The frozen model. None: model_name_or_path (under LoRA, the model without its adapters).",
    )
    kl_estimator: KlEstimator = Field(
        KlEstimator.K2,
        description="k1, k2, k3, k1+ or k3+. Of a token, the value of k3 is limited to 10 and every gradient "
        "by its log-prob to ±20 (times the ratio, with kl_off_policy); a limit keeps the sign.",
    )
    kl_off_policy: bool = Field(False, description="Weight the KL by the ratio: unbiased for stale data.")


class LossConfig(Section):
    """Which loss is minimised, its clip range and its extra terms. Combinations that no loss can use are refused.

    The clip range of a token is [1 − epsilon·w, 1 + epsilon_higher·w] with w = exp(−out_of_date_decay · staleness), times
    `importance_weight_cap_ratio` unless `strict_in_bound`. So by default it is exactly [0.8, 1.27] for fresh and
    stale alike.
    """

    aliases: ClassVar[Mapping[str, str]] = {"loss_calculater": "loss"}  # AgentRL's name

    loss_modules: list[str] = Field(
        [],
        description="Modules to import: their losses and normalizations are registered by that (docs/reference/api.md).",
    )
    loss: str = Field(
        LossName.MINIRL,
        description=f"{', '.join(LossName)}, or a loss of your own that loss_modules registers. "
        "Alias: loss_calculater.",
    )
    epsilon: float = Field(0.2, gt=0, description="Lower clip: the bound is 1 - epsilon (DPPO: of probabilities).")
    epsilon_higher: float = Field(0.27, gt=0, description="Upper clip: the bound is 1 + epsilon_higher.")
    clip_anchor: ClipAnchor = Field(
        ClipAnchor.ROLLOUT,
        description="Policy that the clipped ratio compares with: rollout (the one that sampled) or proximal (the step's start).",
    )
    proximal_logprobs: ProximalLogprobs = Field(
        ProximalLogprobs.RECOMPUTE,
        description="How clip_anchor proximal gets its log-probs: recompute (one forward more) or loglinear (interpolated).",
    )
    importance_weight_cap_ratio: float = Field(
        5.0, ge=1, description="Upper limit of the importance weights of MINIRL and DPPO."
    )
    strict_in_bound: bool = Field(True, description="False: the clip range is wider by the cap ratio.")
    out_of_date_decay: float = Field(
        0.0, ge=0, description="Narrow the clip range by exp(-this) for each step of a token's staleness."
    )
    dual_clip: float | None = Field(
        None, gt=1, description="GRPO, ASPO: limit of the loss at negative advantages (ASPO: at all). None: no limit."
    )
    sapo_temperature_positive: float = Field(
        1.0, gt=0, description="SAPO: temperature of the gate at positive advantages."
    )
    sapo_temperature_negative: float = Field(
        1.05, gt=0, description="SAPO: temperature of the gate at negative advantages."
    )
    log_ratio_penalty: float = Field(0.0, ge=0, description="DPPO: coefficient of the added (log ratio)² penalty.")

    entropy_coefficient: float = Field(0.0, description="Coefficient of the entropy bonus.")
    router_aux_loss_coef: float = Field(
        0.0,
        ge=0,
        description="Coefficient of the load-balancing loss of a mixture of experts (docs/train/training.md).",
    )
    averaging: AveragingSettings = AveragingSettings()
    correction: CorrectionSettings = CorrectionSettings()
    kl: KlSettings | None = None

    @field_validator("loss_modules")
    @classmethod
    def modules_can_be_imported(cls, modules: list[str]) -> list[str]:
        LOSSES.import_modules(modules)
        return modules

    @field_validator("loss")
    @classmethod
    def a_loss_is_registered(cls, name: str, given: ValidationInfo) -> str:
        if "loss_modules" in given.data:  # else they are refused, which says enough
            LOSSES.require(name, list(LossName))
        return LossName(name) if name in BUNDLED else name

    @model_validator(mode="after")
    def epsilon_is_a_part_of_one(self) -> Self:
        if self.epsilon > 1.0:
            raise ValueError(f"epsilon is {self.epsilon}; expected at most 1: the ratio's lower bound is 1 - epsilon")
        return self

    @model_validator(mode="after")
    def a_ratio_is_used_once(self) -> Self:
        name, on_rollout = self.loss, self.clip_anchor is ClipAnchor.ROLLOUT
        weighted = name in WEIGHTED_ALREADY or (on_rollout and name in CLIPPING | {LossName.CROSS_ENTROPY})
        if self.correction.rollout_is is not RolloutIs.NONE and weighted:
            raise ValueError(
                f"rollout_is is {self.correction.rollout_is}, but {name} with clip_anchor {self.clip_anchor} has that ratio "
                "in it already; expected rollout_is none, or clip_anchor proximal"
            )
        return self

    @model_validator(mode="after")
    def sapo_and_dppo_are_anchored_on_the_rollout(self) -> Self:
        if self.loss in (LossName.SAPO, LossName.DPPO) and self.clip_anchor is ClipAnchor.PROXIMAL:
            raise ValueError(f"clip_anchor is proximal; {self.loss} is defined on the rollout policy")
        return self

    @model_validator(mode="after")
    def cross_entropy_knows_no_old_policy(self) -> Self:
        given = [name for name in MASKS if getattr(self.correction, name) is not None]
        if self.correction.rollout_is is not RolloutIs.NONE:
            given.append("rollout_is")
        if self.loss is LossName.CROSS_ENTROPY and given:
            raise ValueError(f"{', '.join(given)}: CrossEntropy does not look at the policy that sampled")
        return self

    @property
    def aggregation(self) -> Aggregation:
        """How tokens are averaged; `token_level_loss` wins over `skip_length_normalization`."""
        if self.averaging.loss_aggregation is not None:
            return self.averaging.loss_aggregation
        token_level, token_sum = self.averaging.token_level_loss, self.averaging.skip_length_normalization
        if token_level or (token_level is None and self.loss in TOKEN_LEVEL and token_sum is None):
            return Aggregation.TOKEN_MEAN
        if token_sum or (token_sum is None and self.loss in TOKEN_SUM):
            return Aggregation.SEQUENCE_SUM
        return Aggregation.SEQUENCE_MEAN

    @property
    def weighs_what_others_sampled(self) -> bool:
        """A token counts by how likely the trained policy makes it against the one that sampled it, however old it is.

        A loss of a user's own is taken to do so.
        """
        name, on_rollout = self.loss, self.clip_anchor is ClipAnchor.ROLLOUT
        if name in WEIGHTED_ALREADY or name not in CLIPPING | {LossName.REINFORCE}:
            return True
        by_ratio = on_rollout and name is not LossName.REINFORCE
        return by_ratio or self.correction.rollout_is is not RolloutIs.NONE

    def without_effect(self) -> dict[str, str]:
        """{setting: why it has no effect}, of those that have another value than their default."""
        reasons = self._not_used_by_loss() if self.loss in BUNDLED else {}
        if self.clip_anchor is not ClipAnchor.PROXIMAL:
            reasons["proximal_logprobs"] = f"clip_anchor is {self.clip_anchor}: it needs proximal"
        if self.averaging.loss_aggregation is not None:
            for setting in ("token_level_loss", "skip_length_normalization"):
                reasons[setting] = f"loss_aggregation {self.averaging.loss_aggregation} says how tokens are averaged"
        elif self.averaging.token_level_loss and self.averaging.skip_length_normalization:
            reasons["skip_length_normalization"] = "token_level_loss true is a mean over all tokens"
        if self.aggregation is not Aggregation.SEQUENCE_SUM:
            reasons["length_scale"] = f"tokens are averaged by {self.aggregation}: it needs {Aggregation.SEQUENCE_SUM}"
        if self.correction.rollout_is is RolloutIs.NONE:
            reasons["rollout_is_cap"] = "rollout_is is none"
        values, settings = flat_values(self), settings_of(LossConfig)
        return {name: why for name, why in reasons.items() if values[name] != settings[name].field.default}

    def _not_used_by_loss(self) -> dict[str, str]:
        """Of a bundled loss; one of a user's own may look at everything."""
        name = self.loss
        reasons = {s: f"loss {name} does not look at it" for s, losses in USED_BY.items() if name not in losses}
        if name not in WEIGHTED_ALREADY and self.strict_in_bound:
            reasons["importance_weight_cap_ratio"] = f"loss {name} with strict_in_bound true has no such cap"
        if name not in CLIPPING:
            reasons["clip_anchor"] = f"loss {name} clips no ratio"
        return reasons

    @property
    def needs_whole_trajectories(self) -> bool:
        """Something in this loss is a function of all trained tokens of a trajectory at once."""
        by_sequence = [getattr(self.correction, name) for name in MASKS if not name.startswith("token_mask")]
        return (
            LOSSES.has(self.loss, "whole_trajectories")
            or self.correction.rollout_is is RolloutIs.SEQUENCE
            or any(value is not None for value in by_sequence)
        )
