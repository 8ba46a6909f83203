"""Service flags on the launcher's command line: `minirl_example.sh RUN --loss GRPO --max_turns 4`.

A flag that is not the launcher's is passed to every service that has it, where it overrides environment and YAML.
Names, values and the rules between settings are checked before anything starts.
"""

from collections.abc import Iterable, Sequence

from sampler.engine.keeper.config import KeeperConfig
from sampler.settings import SamplerConfig
from shared.configuration.loading import ServiceConfig
from shared.configuration.option_names import unknown_option
from shared.configuration.secrets import SECRETS
from shared.configuration.sections import alike, setting_of, settings_of, spellings
from shared.errors import ConfigError
from trainer.settings.config import TrainerConfig

SERVICES: tuple[type[ServiceConfig], ...] = (TrainerConfig, SamplerConfig, KeeperConfig)
OURS = {  # service options that the launcher sets, and what users set instead
    "run": "the run is the first argument of the command line",
    "other_policies": "give the YAML file a section policies (docs/train/two_policies.md)",
    "engine_url": "give ENGINE_URLS",
    "output_dir": "checkpoints and metrics are in output/RUN",
}

ServiceFlags = dict[str, list[str]]  # {section: flags passed to its service}


def split_arguments(arguments: Sequence[str], own: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The launcher's arguments, and {name: value} of the other flags. Raises ConfigError for a flag without a value."""
    mine, others, known = [], {}, {f"--{name}" for name in own} | {"--help", "-h"}
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        flag, equals, value = word.partition("=")
        own_flag = flag in known
        if not flag.startswith("--") or own_flag:
            mine.append(word)
            if own_flag and not equals and remaining and not remaining[0].startswith("--"):
                mine.append(remaining.pop(0))
            continue
        if not equals:
            value = remaining.pop(0) if remaining and not remaining[0].startswith("--") else ""
        others[flag.removeprefix("--")] = value
    return mine, others


def hand_out(given: dict[str, str], launcher: Iterable[str], context: Sequence[str]) -> ServiceFlags:
    """Assign each flag to the services that have it; `context`: flags that all services get (the YAML file, the policy).

    Raises ConfigError for an unknown name, a name that the launcher sets itself, and a value that a service refuses.
    """
    if not given:
        return {}
    for name in given.keys() & OURS.keys():
        raise ConfigError(f"--{name} is set by the launcher: {OURS[name]}")
    for name in given:
        setting = name.rpartition(".")[2]
        if setting in SECRETS:
            raise ConfigError(
                f"--{name} may contain a secret: set it in the environment, as TANDEM_TRAINER_{setting.upper()}"
            )
    takers = {cls.section: {name for name in given if setting_of(cls, name)} for cls in SERVICES}
    taken = set().union(*takers.values())
    every = set(launcher).union(*(spellings(cls) for cls in SERVICES))
    problems = [unknown_option(name, alike(name, every)) for name in given if name not in taken]
    empty = [name for name, value in given.items() if name in taken and not value]
    problems += [f"--{name} has no value; expected --{name} VALUE" for name in empty]
    if problems:
        raise ConfigError("\n".join(problems))
    flags = {
        section: [f"--{name}={value}" for name, value in given.items() if name in names]
        for section, names in takers.items()
    }
    refused = [_refused(cls, context, flags[cls.section]) for cls in SERVICES]
    if any(refused):
        raise ConfigError("\n".join(filter(None, refused)))
    return flags


def _refused(cls: type[ServiceConfig], context: Sequence[str], flags: Sequence[str]) -> str:
    """The service's error message; empty if it accepts the flags."""
    try:
        if flags:
            known = [word for word in context if setting_of(cls, word.removeprefix("--").partition("=")[0])]
            cls.load([*_placeholders(cls), *known, *flags])
    except ConfigError as exc:
        return str(exc)
    return ""


def _placeholders(cls: type[ServiceConfig]) -> list[str]:
    """For what a service demands and the launcher gives it later."""
    return [f"--{name}=x" for name, setting in settings_of(cls).items() if setting.required]
