"""Compares a preset with the run's rules: a preset is for an estimator of advantages, which the samplers compute."""

import logging

from shared.documents.rules import RunRules
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig
from trainer.settings.presets import PRESETS

log = logging.getLogger(__name__)


def log_preset(bridge: StoreBridge, config: TrainerConfig) -> None:
    """Log what the preset is, and a warning with both values where the run's rules have another estimator."""
    if config.preset is None:
        return
    preset = PRESETS[config.preset]
    rules = next(iter(bridge(bridge.store.rules.all(config.policy))), None)
    log.info("preset %s (%s): for advantage=%s", config.preset, preset.source, preset.advantage)
    text = preset_problem(config.run, config.preset, rules)
    if text is not None:
        log.warning("%s", text)


def preset_problem(run: str, name: str, rules: RunRules | None) -> str | None:
    """None: the rules have the preset's estimator, or no sampler has declared them yet."""
    expected = PRESETS[name].advantage
    if rules is None or rules.values.get("advantage") == expected:
        return None
    return (
        f"preset {name} is for advantage={expected}, and the run has {rules.values.get('advantage')} ({rules.origin}); to change "
        f"it: tandem rules {run} --set advantage={expected}"
    )
