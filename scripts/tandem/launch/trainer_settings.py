"""Settings of the trainer as flags, variables or the YAML give them. Its own defaults, and its class of settings, need torch."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared.configuration.loading import read_policies, read_sections, require_keys
from shared.configuration.typed_values import typed
from shared.errors import ConfigError
from shared.names import shortened
from tandem.launch.places import ROOT

PATHS = {  # the sections of the settings that a launch reads
    "groups_per_step": "data",
    "max_tokens_per_row": "data",
    "max_staleness": "data",
    "learning_rate": "optimizer",
    "max_steps": "optimizer",
    "optim": "optimizer",
    "dtype": "model",
    "lora_rank": "model.lora",
    "use_dora": "model.lora",
    "base_quantization": "model.lora",
}
EXPECTED: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """`flags`: the trainer's on the command line; `config`: the YAML file; `policy`: whose trainer."""

    flags: Sequence[str]
    config: Path | None
    policy: str

    def get(self, name: str, kind: type[Value]) -> Value | None:
        """None: given nowhere. A flag before a variable before the YAML. Raises ConfigError for a value that is no `kind`."""
        flags = dict(word.split("=", 1) for word in self.flags)
        spelt = (name, f"{PATHS[name]}.{name}")
        variables = [f"TANDEM_TRAINER_{one.replace('.', '__').upper()}" for one in spelt]
        written = [flags.get(f"--{one}") for one in spelt] + [os.environ.get(one) for one in variables]
        given = next(filter(None, written), None)
        if given is not None:
            return _typed(kind, given, variables[0])
        in_file = None if self.config is None else self._in_yaml(self.config, name)
        return None if in_file is None else _typed(kind, in_file, f"{self.config}: trainer: {name}")

    def _in_yaml(self, config: Path, name: str) -> object:
        """The policy's own value, else the common one. A setting may stand in its section or at the top of `trainer`."""
        common, own = read_sections(ROOT / config), read_policies(ROOT / config).get(self.policy, {})
        sections = [require_keys(content.get("trainer"), f"{config}: trainer") for content in (own, common)]
        found = (place[name] for section in sections for place in _places(section) if place.get(name) is not None)
        return next(found, None)


def _places(section: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield section
    for value in section.values():
        if isinstance(value, dict):
            yield from _places(value)


def _typed(kind: type[Value], given: object, where: str) -> Value:
    value, misread = typed(kind, str(given) if isinstance(given, dict | list) else given)
    if misread or not isinstance(value, kind):
        raise ConfigError(f"{where} is {shortened(given)}; expected {EXPECTED.get(kind, kind.__name__)}")
    return value
