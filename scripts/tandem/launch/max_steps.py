"""The trainer's `max_steps` as flags, variables or the YAML give it. The trainer's own defaults would need torch."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.configuration.loading import read_policies, read_sections, require_keys
from shared.configuration.typed_values import typed
from shared.errors import ConfigError
from shared.names import shortened
from tandem.launch.places import ROOT

NAMES = ("max_steps", "optimizer.max_steps")  # as flags and variables may spell it
VARIABLES = ("TANDEM_TRAINER_MAX_STEPS", "TANDEM_TRAINER_OPTIMIZER__MAX_STEPS")


def given_max_steps(trainer_flags: Sequence[str], config: Path | None, policy: str) -> int | None:
    """None: given nowhere. Raises ConfigError for what is no number."""
    flags = dict(word.split("=", 1) for word in trainer_flags)
    given = next(
        filter(None, [flags.get(f"--{name}") for name in NAMES] + [os.environ.get(name) for name in VARIABLES]), None
    )
    if given:
        return _number(given, VARIABLES[0])
    return None if config is None else _of_yaml(config, policy)


def _of_yaml(config: Path, policy: str) -> int | None:
    common, own = read_sections(ROOT / config), read_policies(ROOT / config).get(policy, {})
    sections: list[Mapping[str, object]] = [
        require_keys(content.get("trainer"), f"{config}: trainer") for content in (common, own)
    ]
    places = [place for section in sections for place in (section.get("optimizer"), section) if isinstance(place, dict)]
    given = next((place["max_steps"] for place in reversed(places) if place.get("max_steps") is not None), None)
    return None if given is None else _number(given, f"{config}: trainer: max_steps")


def _number(given: object, where: str) -> int:
    steps, misread = typed(int, str(given) if isinstance(given, dict | list) else given)
    if misread or not isinstance(steps, int):
        raise ConfigError(f"{where} is {shortened(given)}; expected a number of steps")
    return steps
