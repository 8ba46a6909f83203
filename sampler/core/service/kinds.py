"""The samplers that this process plays, by the names that tasks give them (`TaskPayload.sampler`).

    no name ─▶ the setting `sampler`      "mcp" ─▶ MCPSampler      "chess" ─▶ samplers: {chess: my_package.chess:Chess}

A name never imports code: classes come from the settings alone. A name that this process does not have is left to others.
"""

import shutil
from collections.abc import Iterator, Mapping
from typing import Self

from sampler.core.episode.sampler import AsyncSampler
from sampler.gateway.child import split
from sampler.settings import SamplerConfig
from shared.errors import ConfigError
from shared.tasks.sampler_names import SamplerTraits
from shared.user_code.loading import load_class, load_function

BUNDLED = {
    "agent": "sampler.gateway.agent_sampler:AgentSampler",
    "environment": "sampler.environments.sampler:EnvironmentSampler",
    "game": "sampler.environments.game_sampler:GameSampler",
    "mcp": "sampler.core.kinds.mcp_sampler:MCPSampler",
    "parallel": "sampler.actors.parallel_sampler:ParallelSampler",
    "rounds": "sampler.actors.rounds_sampler:RoundsSampler",
}
FULL: Mapping[str, str] = {}


class SamplerKinds:
    """`default` plays tasks that name no sampler."""

    def __init__(
        self, default: type[AsyncSampler], named: Mapping[str, type[AsyncSampler]], lacking: Mapping[str, str] = FULL
    ) -> None:
        """`lacking`: why this process does not have a bundled name."""
        self._default, self._named, self.lacking = default, named, lacking

    @classmethod
    def of(cls, config: SamplerConfig) -> Self:
        """Load every class that the settings name, and look for the agent. Raises ConfigError."""
        named = {name: _load(f"samplers: {name}", path) for name, path in (BUNDLED | config.samplers).items()}
        wanted = config.sampler or ("agent" if config.agent or config.agent_command else "mcp")
        default = named[wanted] if wanted in named else _load("sampler", wanted)
        _check_agent(config)
        lacking = {name: text for name, kind in named.items() if (text := kind.lacks(config)) is not None}
        return cls(default, {name: kind for name, kind in named.items() if name not in lacking}, lacking)

    def of_task(self, name: str | None) -> type[AsyncSampler]:
        """Raises ConfigError for a name that this process does not have."""
        if name is None:
            return self._default
        if name in self.lacking:
            raise ConfigError(f"sampler {name!r} lacks a setting here: {self.lacking[name]}")
        if name not in self._named:
            raise ConfigError(
                f"sampler {name!r} is unknown here; expected one of {', '.join(sorted(self._named))}, or a name that the setting "
                "samplers gives to a class"
            )
        return self._named[name]

    def __iter__(self) -> Iterator[tuple[str | None, type[AsyncSampler]]]:
        """By name; None: of tasks that name none."""
        yield None, self._default
        yield from self._named.items()

    def use_tools(self, name: str | None) -> bool:
        """Whether tasks of this name need the tool servers here; False for a name that this process does not have."""
        kind = self._default if name is None else self._named.get(name)
        return kind is not None and kind.uses_tools

    def traits(self) -> dict[str | None, SamplerTraits]:
        return {name: traits_of(kind) for name, kind in self}


def _check_agent(config: SamplerConfig) -> None:
    """Find a misspelt agent before a task fails on it. Raises ConfigError."""
    if config.agent is not None:
        load_function("agent", config.agent)
    if config.agent_command is None or config.agent_isolation == "container":  # there its image has the programs
        return
    program = split(config.agent_command)[0]
    if "{" not in program and shutil.which(program) is None:
        where = "an executable file at that path" if "/" in program else "a program on PATH"
        raise ConfigError(f"agent_command is {config.agent_command!r}: there is no {program!r}; expected {where}")


def _load(option: str, path: str) -> type[AsyncSampler]:
    return load_class(option, path, AsyncSampler)  # type: ignore[type-abstract]  # a bound for subclasses, never instantiated


def traits_of(kind: type[AsyncSampler]) -> SamplerTraits:
    return SamplerTraits(scores_itself(kind), kind.uses_tools)


def scores_itself(kind: type[AsyncSampler]) -> bool:
    """Whether the class scores its episodes or chooses their scorer, so that it may ignore the tasks' scorers."""
    ours = AsyncSampler
    return kind.evaluate_record is not ours.evaluate_record or kind.scorer_name is not ours.scorer_name
