"""What an audit knows of its run before it examines groups."""

from collections.abc import Mapping
from dataclasses import dataclass

TASKS_PER_QUERY = 250


@dataclass(frozen=True, slots=True)
class AuditScope:
    """`running`: slots may be open, and what holds only between writes is not examined. `limits`: {policy: how often its trainer
    may use one record}. `newest`: {policy: optimizer steps of its newest weights}."""

    running: bool
    limits: Mapping[str, int]
    newest: Mapping[str, int]
