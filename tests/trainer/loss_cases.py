"""Loss settings under test, by name, each chosen so that on random data every branch of its formula is taken."""

from typing import Any

from shared.configuration.sections import settings_of
from trainer.losses import LossConfig
from trainer.settings.presets import PRESETS


def config(**values: Any) -> LossConfig:
    return LossConfig(**values)


def of_preset(name: str, **values: Any) -> LossConfig:
    """A preset's loss, with values that suit random data."""
    settings = {k: v for k, v in PRESETS[name].settings.items() if k in settings_of(LossConfig)}
    return LossConfig(**{**settings, **values})


PROXIMAL = {"clip_anchor": "proximal"}
TOKEN_WISE = {
    "minirl": of_preset("minirl", importance_weight_cap_ratio=1.5),
    "minirl, token mean": config(token_level_loss=True),
    "minirl, scaled": config(length_scale=64.0),
    "minirl, wide and aging": config(strict_in_bound=False, importance_weight_cap_ratio=1.2, out_of_date_decay=0.3),
    "minirl, proximal": of_preset("minirl_proximal", importance_weight_cap_ratio=1.5),
    "grpo": of_preset("grpo"),
    "grpo, aging": config(loss="GRPO", out_of_date_decay=0.5, skip_length_normalization=True),
    "grpo, dual clip": of_preset("grpo", dual_clip=1.4),
    "grpo, token sum": config(loss="GRPO", loss_aggregation="token-sum"),
    "grpo, entropy": config(loss="GRPO", entropy_coefficient=0.3),
    "grpo, kl k1": config(loss="GRPO", kl_coefficient=0.2, kl_estimator="k1"),
    "grpo, kl k2": config(loss="GRPO", kl_coefficient=0.2, kl_estimator="k2"),
    "grpo, kl k3 off-policy": of_preset("deepseek_v32", kl_coefficient=0.2, opsm_threshold=None),
    "grpo, kl k3+": config(loss="GRPO", kl_coefficient=0.2, kl_estimator="k3+"),
    "dapo": of_preset("dapo"),
    "dr_grpo": of_preset("dr_grpo", length_scale=30.0),
    "cispo": of_preset("cispo", epsilon_higher=0.4),
    "cispo, proximal, tis": config(loss="CISPO", **PROXIMAL, rollout_is="token", rollout_is_cap=1.1),
    "reinforce": config(loss="REINFORCE"),
    "reinforce_tis": of_preset("reinforce_tis", rollout_is_cap=1.3),
    "dppo": of_preset("dppo", epsilon=0.05, epsilon_higher=0.05, importance_weight_cap_ratio=1.5),
    "decoupled_ppo": of_preset("decoupled_ppo", rollout_is_cap=1.2, token_mask_high=1.5),
    "a3po": of_preset("a3po", epsilon=0.05, epsilon_higher=0.05),
    "icepop": of_preset("icepop", token_mask_low=0.8, token_mask_high=1.4),
    "sapo": of_preset("sapo"),
    "aspo": of_preset("aspo", dual_clip=1.5),
    "sft": of_preset("sft"),
    "sft, sequence mean": config(loss="CrossEntropy", token_level_loss=False),
}
SEQUENCE_WISE = {
    "gspo": of_preset("gspo", epsilon=0.05, epsilon_higher=0.05),
    "gspo, token mean": of_preset("gspo", epsilon=0.3, token_level_loss=True),
    "gspo, proximal": of_preset("gspo", epsilon=0.02, epsilon_higher=0.02, **PROXIMAL),
    "gspo, aging": of_preset("gspo", epsilon=0.1, epsilon_higher=0.1, out_of_date_decay=0.5),
    "gspo_token": of_preset("gspo_token", epsilon=0.05, epsilon_higher=0.05),
    "gspo_token, aging": of_preset("gspo_token", epsilon=0.1, epsilon_higher=0.1, out_of_date_decay=0.5),
    "gspo, entropy and kl": of_preset("gspo", epsilon=0.1, entropy_coefficient=0.1, kl_coefficient=0.2),
    "reinforce, sequence tis": config(loss="REINFORCE", rollout_is="sequence", rollout_is_cap=1.5),
    "sequence mask": config(sequence_mask_low=0.1, sequence_mask_high=10.0),
    "geometric mask": config(geometric_mask_low=0.85, geometric_mask_high=1.15),
    "k3 mask": config(k3_mask_high=0.12),
    "veto": config(veto_low=0.5),
    "opsm": config(loss="GRPO", opsm_threshold=0.01),
    "opsm, proximal": config(loss="GRPO", **PROXIMAL, opsm_threshold=0.01),
    "proximal masks": config(loss="GRPO", **PROXIMAL, geometric_mask_low=0.9, rollout_is="token"),
}
LOSSES = TOKEN_WISE | SEQUENCE_WISE
