"""Reports settings that have no effect because of the value of another one: the user who set one expects an effect."""

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from shared.configuration.sections import flat_values, settings_of

log = logging.getLogger(__name__)


def unused(config: BaseModel, rules: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    """{setting: why it has no effect}, of the `rules`, {setting: (another one, its value that makes the setting do nothing)}.

    A setting with its default value is never reported: it cannot be told whether the user gave it.
    """
    values, settings = flat_values(config), settings_of(type(config))
    return {
        name: f"{other} is {value}"
        for name, (other, value) in rules.items()
        if values[other] == value and values[name] != settings[name].field.get_default(call_default_factory=True)
    }


def warn_of_unused(config: BaseModel, reasons: Mapping[str, str]) -> None:
    """A line for each of {setting: why it has no effect}. No error: a flag may turn off what a file sets."""
    for name, why in reasons.items():
        log.warning("%s is %s, but has no effect: %s", name, flat_values(config)[name], why)
