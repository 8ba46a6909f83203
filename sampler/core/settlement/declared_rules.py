"""The rules that a process's settings would declare, how they differ from the run's, and the settings under the run's rules."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sampler.core.api_models.config import read_agents_config
from sampler.core.rendering.chosen_template import digest_of_chosen
from sampler.core.settings.core_config import CoreConfig
from shared.configuration.given import given_settings
from shared.configuration.sections import flat_values, place_text
from shared.documents.rules import RunRules
from shared.errors import ConfigError, MalformedDocument
from shared.names import DEFAULT_POLICY, shortened
from shared.rules.run_rules import RULE_NAMES, PolicyRules, Rules

OF_PROCESS = (*PolicyRules.model_fields, "template_digest")  # of a process's folders, which no other process can read
MAX_NAMED = 8

ConfigT = TypeVar("ConfigT", bound=CoreConfig)


def declared(config: CoreConfig, template_digest: str | None = None) -> Rules:
    """Of a process's settings, given or not. `template_digest` None: of its template, which is read. Raises ConfigError."""
    values = {name: value for name, value in flat_values(config).items() if name in RULE_NAMES}
    if config.scoring.default_scorer is None and not config.scoring.default_scorers:
        values["default_scorer"] = _default_scorer(config.scoring.agent_config_path)
    if template_digest is None:
        template_digest = digest_of_chosen(config.model_name_or_path, config.prompt.chat_template)
    policies = {
        "other_policies": sorted(config.other_policies),
        "frozen_policies": sorted(config.frozen_policies),
    }
    return Rules.model_validate({**values, **policies, "template_digest": template_digest})


def _default_scorer(agents: Path | None) -> str:
    has_judge = agents is not None and read_agents_config(agents).scorer_agent
    return "agentcpm" if has_judge else "exact_match"


def rules_from(stored: RunRules) -> Rules:
    """Raises MalformedDocument."""
    try:
        if not stored.is_whole:
            raise MalformedDocument(RunRules.collection, stored.id, "its settings were changed; rules are never edited")
        return Rules.model_validate(stored.values)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        problem = f"{place_text(Rules, first['loc'])}: {first['msg']}"
        raise MalformedDocument(RunRules.collection, stored.id, problem) from exc


def under_rules(config: ConfigT, rules: Rules) -> ConfigT:
    """The same settings of the process, and the run's rules. Raises ConfigError where both do not fit together."""
    own = {name: value for name, value in flat_values(config).items() if name in given_settings(config)}
    values = {name: value for name, value in rules.plain().items() if name not in OF_PROCESS}
    frozen_policies = rules.policies.frozen_policies
    frozen = {"frozen_policies": frozen_policies} if set(frozen_policies) <= set(config.other_policies) else {}
    try:
        return config.with_values({**own, **values, **frozen})
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise ConfigError(f"{place_text(type(config), first['loc'])}: {first['msg']}, by the rules of the run") from exc


def refuse_differences(config: CoreConfig, own: Rules, stored: RunRules, run: str) -> None:
    """Raises ConfigError, with both values, for rules that were given to this process and that the run has otherwise."""
    given, expected = given_settings(config), rules_from(stored).plain()
    differing = {
        name: (value, expected[name])
        for name, value in own.plain().items()
        if value != expected[name] and (name in given or name in ("other_policies", "template_digest"))
    }
    if not differing:
        return
    named = list(differing.items())[:MAX_NAMED]
    values = "; ".join(
        f"{_source(config, name)}{name} is {shortened(value)}; expected {shortened(of_run)}"
        for name, (value, of_run) in named
    )
    change = " ".join(f"--set {as_argument(name, value)}" for name, (value, _) in named)
    hints = "".join(f" {HINTS[name]}" for name, _ in named if name in HINTS)
    raise ConfigError(
        f"{values}, as the run has it ({stored.origin}). What decides what is learned belongs to the run: leave the setting "
        f"out, or change it for groups that are opened from now on: tandem rules {run}{_of_policy(stored)} {change}{hints}"
    )


HINTS = {
    "other_policies": "(a process names the folder of each: other_policies)",
    "template_digest": "(the template is of model_name_or_path, or the file that chat_template names)",
}


def as_argument(name: str, value: Any) -> str:
    """As an argument of `tandem rules --set`."""
    text = value if isinstance(value, str) else json.dumps(value)
    return shlex.quote(f"{name}={text}")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{rule: (before, after)}."""
    return {name: (old.get(name), value) for name, value in new.items() if old.get(name) != value}


def _source(config: CoreConfig, name: str) -> str:
    source = config.source_of(name)
    return f"{source}: " if source else ""


def _of_policy(stored: RunRules) -> str:
    return "" if stored.policy == DEFAULT_POLICY else f" --policy {stored.policy}"
