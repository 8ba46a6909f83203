"""The seam between the core and its tenants: other kinds of episodes, and what one process holds open for them.

    settings name modules (`CoreConfig.tenants`) ─▶ the `TENANT` of each ─▶ kinds of episodes by name
                                                                        └▶ `TenantState`: what its episodes share in one process

The core imports no tenant: it knows them by the settings alone, and a tenant's episodes find what theirs share by its class:
`resources.opened.of(Environments)`.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import ClassVar, TypeVar

from sampler.core.settings.core_config import CoreConfig
from shared.store import Store


class TenantState:
    """What a tenant holds in one process. Override what it needs."""

    async def begin(self) -> None:
        """Once, before anything is claimed. Raises ConfigError."""

    async def refresh(self) -> None:
        """At every poll of the process."""

    def full_environments(self) -> Sequence[str]:
        """Environments of which no task is claimed now."""
        return ()

    def alarms(self) -> Sequence[str]:
        """What its episodes wait for, a sentence each."""
        return ()

    async def close(self) -> None:
        """At the end of the process."""


class Tenant:
    """A folder of the sampler beside the core. `kinds`: the samplers that tasks may name, as module:Class."""

    kinds: ClassVar[Mapping[str, str]] = {}

    def default_kind(self, config: CoreConfig) -> str | None:
        """The kind that plays tasks without a sampler; None: not this tenant's."""
        return None

    def check(self, config: CoreConfig) -> None:
        """Before the process starts. Raises ConfigError for settings that no episode can use."""

    def opened(self, store: Store, config: CoreConfig) -> Sequence[TenantState]:
        """New for each process; nothing is open yet."""
        return ()


OpenedT = TypeVar("OpenedT", bound=TenantState)


class OpenTenants:
    """All `TenantState` of one process."""

    def __init__(self, parts: Iterable[TenantState] = ()) -> None:
        self._parts: dict[type[TenantState], TenantState] = {type(part): part for part in parts}

    def of(self, kind: type[OpenedT]) -> OpenedT:
        """Raises LookupError where the settings name no tenant that has it."""
        part = self._parts.get(kind)
        if not isinstance(part, kind):
            names = ", ".join(sorted(one.__name__ for one in self._parts)) or "none"
            raise LookupError(f"{kind.__qualname__} is not open in this process; open are: {names}")
        return part

    def replaced(self, part: TenantState) -> "OpenTenants":
        """With another part of the same class."""
        return OpenTenants([*(one for one in self._parts.values() if type(one) is not type(part)), part])

    async def begin(self) -> None:
        for part in self._parts.values():
            await part.begin()

    async def refresh(self) -> None:
        for part in self._parts.values():
            await part.refresh()

    def full_environments(self) -> list[str]:
        return [name for part in self._parts.values() for name in part.full_environments()]

    def alarms(self) -> list[str]:
        return [text for part in self._parts.values() for text in part.alarms()]

    async def close(self) -> None:
        for part in self._parts.values():
            await part.close()


def tenants_of(config: CoreConfig) -> list[Tenant]:
    tenants: list[Tenant] = [import_module(name).TENANT for name in config.tenants]
    return tenants


def open_tenants(store: Store, config: CoreConfig) -> OpenTenants:
    return OpenTenants(part for tenant in tenants_of(config) for part in tenant.opened(store, config))
