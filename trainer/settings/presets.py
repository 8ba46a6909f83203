"""Presets: `--preset NAME` sets these values, and any flag, variable or YAML key of the same name wins over them.

Data, not code. `advantage` is what the samplers should be started with (`--advantage`): it is computed there.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    source: str
    advantage: str
    settings: dict[str, Any] = field(default_factory=dict)


PPO_RANGE = {"epsilon": 0.2, "epsilon_higher": 0.2}
TOKEN_MEAN = {"token_level_loss": True}
SEQUENCE_MEAN = {"token_level_loss": False, "skip_length_normalization": False}
SEQUENCE_SUM = {"token_level_loss": False, "skip_length_normalization": True}

PRESETS: dict[str, Preset] = {
    "minirl": Preset(
        "arXiv 2512.01374, clip decision anchored on the rollout policy",
        "mean",
        {"loss": "MINIRL", "epsilon": 0.2, "epsilon_higher": 0.27, "importance_weight_cap_ratio": 5.0} | SEQUENCE_SUM,
    ),
    "minirl_proximal": Preset(
        "arXiv 2512.01374 as written: clip decision against the policy before the first of several updates",
        "mean",
        {"loss": "MINIRL", "epsilon": 0.2, "epsilon_higher": 0.27, "importance_weight_cap_ratio": 5.0}
        | {"clip_anchor": "proximal", "updates_per_step": 2}
        | SEQUENCE_SUM,
    ),
    "grpo": Preset(
        "arXiv 2402.03300, without its KL term (there kl_coefficient 0.04, kl_estimator k3)",
        "zscore",
        {"loss": "GRPO"} | PPO_RANGE | SEQUENCE_MEAN,
    ),
    "dapo": Preset(
        "arXiv 2503.14476",
        "zscore",
        {"loss": "GRPO", "epsilon": 0.2, "epsilon_higher": 0.28} | TOKEN_MEAN,
    ),
    "dr_grpo": Preset(
        "arXiv 2503.20783; length_scale is its script's maximum of tokens: give yours",
        "mean",
        {"loss": "GRPO", "length_scale": 3000.0} | PPO_RANGE | SEQUENCE_SUM,
    ),
    "gspo": Preset(
        "arXiv 2507.18071; its narrow clip takes the loss of old trajectories, so a step waits for the oldest tasks",
        "zscore",
        {"loss": "GSPO", "epsilon": 3e-4, "epsilon_higher": 4e-4, "stale_data": "wait"} | SEQUENCE_MEAN,
    ),
    "gspo_token": Preset(
        "arXiv 2507.18071, section 4.3; a step waits as with gspo",
        "zscore",
        {"loss": "GSPO-token", "epsilon": 3e-4, "epsilon_higher": 4e-4, "stale_data": "wait"} | SEQUENCE_MEAN,
    ),
    "cispo": Preset(
        "arXiv 2506.13585, cap 5 as in ScaleRL, arXiv 2510.13786",
        "zscore",
        {"loss": "CISPO", "epsilon": 1.0, "epsilon_higher": 4.0} | TOKEN_MEAN,
    ),
    "reinforce_tis": Preset(
        "https://fengyao.notion.site/off-policy-rl",
        "mean",
        {"loss": "REINFORCE", "rollout_is": "token", "rollout_is_cap": 2.0} | TOKEN_MEAN,
    ),
    "dppo": Preset(
        "arXiv 2602.04879, total variation, as prime-rl's default",
        "mean",
        {"loss": "DPPO", "log_ratio_penalty": 1e-3, "importance_weight_cap_ratio": 20.0}
        | {"drop_zero_advantage": False}
        | PPO_RANGE
        | TOKEN_MEAN,
    ),
    "decoupled_ppo": Preset(
        "AReaL, arXiv 2505.24298",
        "zscore",
        {"loss": "GRPO", "clip_anchor": "proximal", "updates_per_step": 4}
        | {"rollout_is": "token", "rollout_is_cap": 5.0, "token_mask_high": 5.0}
        | PPO_RANGE
        | TOKEN_MEAN,
    ),
    "a3po": Preset(
        "arXiv 2512.06547, AReaL's prox_logp_method=loglinear: decoupled PPO without a forward for the proximal policy",
        "zscore",
        {"loss": "GRPO", "clip_anchor": "proximal", "proximal_logprobs": "loglinear"}
        | {"rollout_is": "token", "rollout_is_cap": 5.0, "token_mask_high": 5.0}
        | PPO_RANGE
        | TOKEN_MEAN,
    ),
    "icepop": Preset(
        "arXiv 2510.18855",
        "zscore",
        {"loss": "GRPO", "clip_anchor": "proximal", "updates_per_step": 4, "rollout_is": "token"}
        | {"rollout_is_cap": 5.0, "token_mask_low": 0.5, "token_mask_high": 5.0}
        | PPO_RANGE
        | TOKEN_MEAN,
    ),
    "sapo": Preset("arXiv 2511.20347", "zscore", {"loss": "SAPO"} | PPO_RANGE | SEQUENCE_MEAN),
    "aspo": Preset(
        "arXiv 2510.06062",
        "zscore",
        {"loss": "ASPO", "dual_clip": 3.0} | PPO_RANGE | TOKEN_MEAN,
    ),
    "deepseek_v32": Preset(
        "arXiv 2512.02556: unbiased KL and off-policy sequence masking",
        "mean",
        {"loss": "GRPO", "kl_coefficient": 1e-3, "kl_estimator": "k3", "kl_off_policy": True}
        | {"opsm_threshold": 0.5, "drop_zero_advantage": False}
        | PPO_RANGE
        | SEQUENCE_MEAN,
    ),
    "sft": Preset(
        "maximum likelihood of the trained tokens of records",
        "mean",
        {"loss": "CrossEntropy", "drop_zero_advantage": False} | TOKEN_MEAN,
    ),
}
