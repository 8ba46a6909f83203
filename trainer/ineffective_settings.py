"""Reports settings that have no effect because of the value of another one: the user who set one expects an effect."""

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

log = logging.getLogger(__name__)


def unused(config: BaseModel, rules: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    """{setting: why it has no effect}, of the `rules`, {setting: (another one, its value that makes the setting do nothing)}.

    A setting with its default value is never reported: it cannot be told whether the user gave it.
    """
    fields = type(config).model_fields
    return {
        name: f"{other} is {value}"
        for name, (other, value) in rules.items()
        if getattr(config, other) == value
        and getattr(config, name) != fields[name].get_default(call_default_factory=True)
    }


def warn_of_unused(config: BaseModel, found: Mapping[str, str]) -> None:
    """A line for each of {setting: why it has no effect}. No error: a flag may turn off what a file sets."""
    for name, why in found.items():
        log.warning("%s is %s, but has no effect: %s", name, getattr(config, name), why)
