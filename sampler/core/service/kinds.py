"""The samplers that this process plays, by the names that tasks give them (`TaskPayload.sampler`).

    no name ─▶ the setting `sampler`      "mcp" ─▶ MCPSampler      "chess" ─▶ samplers: {chess: my_package.chess:Chess}

A name never imports code: classes come from the settings alone. A name that this process does not have is left to others.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Self

from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.settings.core_config import CoreConfig
from sampler.core.tenant import tenants_of
from shared.documents import Claim
from shared.errors import ConfigError
from shared.tasks.sampler_names import SamplerTraits
from shared.user_code.frames import user_code_error
from shared.user_code.loading import load_class

BUNDLED = {"mcp": "sampler.core.kinds.mcp_sampler:MCPSampler"}
FULL: Mapping[str, str] = {}


class SamplerKinds:
    """`default` plays tasks that name no sampler."""

    def __init__(
        self, default: type[AsyncSampler], named: Mapping[str, type[AsyncSampler]], lacking: Mapping[str, str] = FULL
    ) -> None:
        """`lacking`: why this process does not have a bundled name."""
        self._default, self._named, self.lacking = default, named, lacking

    @classmethod
    def of(cls, config: CoreConfig) -> Self:
        """Load every class that the settings name, and check what tenants need. Raises ConfigError."""
        tenants = tenants_of(config)
        bundled = BUNDLED | {name: path for tenant in tenants for name, path in tenant.kinds.items()}
        named = {name: _bundled(path) for name, path in sorted(bundled.items())}
        named |= {name: _load(f"samplers: {name}", path) for name, path in config.samplers.items()}
        of_tenants = [kind for tenant in tenants if (kind := tenant.default_kind(config)) is not None]
        chosen = config.sampler or next(iter(of_tenants), "mcp")
        default = named[chosen] if chosen in named else _load("sampler", chosen)
        for tenant in tenants:
            tenant.check(config)
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


def _bundled(path: str) -> type[AsyncSampler]:
    """Ours, also where the working directory has a package of the same name."""
    module, _, name = path.partition(":")
    kind: type[AsyncSampler] = getattr(import_module(module), name)
    return kind


def _load(option: str, path: str) -> type[AsyncSampler]:
    return load_class(option, path, AsyncSampler)  # type: ignore[type-abstract]  # a bound for subclasses, never instantiated


def traits_of(kind: type[AsyncSampler]) -> SamplerTraits:
    return SamplerTraits(scores_itself(kind), kind.uses_tools)


def scores_itself(kind: type[AsyncSampler]) -> bool:
    """Whether the class scores its episodes or chooses their scorer, so that it may ignore the tasks' scorers."""
    ours = AsyncSampler
    return kind.evaluate_record is not ours.evaluate_record or kind.scorer_name is not ours.scorer_name


def new_episode(kind: type[AsyncSampler], resources: Resources, claim: Claim) -> AsyncSampler:
    """Raises OwnCodeFailed if the class's own `__init__` fails."""
    try:
        return kind(resources, claim)
    except (Exception, SystemExit) as exc:
        fault = user_code_error(exc, kind)
        if fault is None:
            raise
        raise fault from exc
