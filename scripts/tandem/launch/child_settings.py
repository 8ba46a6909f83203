"""The settings of services as this launch's children will read them: flags, YAML file, defaults. They raise ConfigError."""

from collections.abc import Sequence

from sampler.engine.keeper.config import KeeperConfig
from sampler.settings import SamplerConfig
from tandem.launch import commands
from tandem.launch.settings import LaunchConfig

OWN_FLAGS = 3  # of a command line: the interpreter, -m and the module come before
REQUIRED = ["--db_connection_string=mongodb://unused"]  # in place of what a child gets by its environment


def keeper_settings(config: LaunchConfig, kind: str | None = None) -> KeeperConfig:
    """Of the first keeper of its policy, or of the one that starts an engine of `kind`."""
    url = next(iter(config.engine_urls), None)
    return KeeperConfig.load([*REQUIRED, *commands.keeper(config, url, kind=kind)[OWN_FLAGS:]])


def sampler_settings(policies: Sequence[LaunchConfig]) -> SamplerConfig:
    return SamplerConfig.load([*REQUIRED, *commands.sampler(policies, None)[OWN_FLAGS:]])
