"""The run's rules, as one process knows them: declared or compared at its start, followed while it runs.

    start      no rules yet ─▶ this process's settings become rules 1        rules ─▶ what is given here must be the same
    running    a new number ─▶ groups that this process opens get it
               a number that cannot be applied here ─▶ none of its groups is opened or settled here, and an alarm says why

`declared` and `settlement_of` are what everything else reads: no setting of a process reaches settlement but through them.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from sampler.config import SamplerConfig
from shared.documents import Task
from shared.documents.rules import FIRST, RunRules
from shared.errors import ConfigError, MalformedDocument
from shared.names import DEFAULT_POLICY, shortened
from shared.rules.groups import SettlementRules, is_registered
from shared.store import Store

OF_UNTRAINED = ("frozen_policies", "other_policies", "actors")  # settings that say which policies get no training data
MAX_NAMED = 8


def declared(config: SamplerConfig) -> SettlementRules:
    """The rules that this process's settings, given or not, would declare."""
    values = {name: getattr(config, name) for name in SettlementRules.model_fields if name != "untrained_policies"}
    return SettlementRules(**values, untrained_policies=sorted(config.untrained_policies))


def settlement_of(rules: RunRules) -> SettlementRules:
    """Raises MalformedDocument."""
    try:
        if not rules.is_whole:
            raise MalformedDocument(RunRules.collection, rules.id, "its settings were changed; rules are never edited")
        return SettlementRules.model_validate(rules.settlement)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        problem = f"settlement.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise MalformedDocument(RunRules.collection, rules.id, problem) from exc


async def settlement_of_group(store: Store, task: Task) -> SettlementRules:
    """The rules that the group was opened with. Raises DataError."""
    return settlement_of(await store.rules.of_task(task))


class CurrentRules:
    """`number`: of the groups that this process opens; None: it opens none. `applicable`: numbers whose groups it settles."""

    def __init__(self, store: Store, config: SamplerConfig, worker: str) -> None:
        self._store, self._config, self._worker = store, config, worker
        self.number: int | None = None
        self.applicable: Sequence[int] = ()
        self._problems: dict[int, str] = {}

    async def begin(self) -> SettlementRules:
        """Declare the rules if there are none. Raises ConfigError if something else was given here than the run has."""
        known = await self._store.rules.all(self._config.policy)
        if known:
            newest = known[0]
        else:
            sections = {"settlement": declared(self._config).model_dump(mode="json")}
            newest = await self._store.rules.add(RunRules.of(self._config.policy, FIRST, sections, self._worker))
        in_force = settlement_of(newest)
        self._refuse_others(newest, in_force)
        if (problem := _problem(newest)) is not None:
            raise ConfigError(f"run {self._store.run}: {problem}")
        await self.refresh()
        return in_force

    async def refresh(self) -> None:
        known = await self._store.rules.all(self._config.policy)
        self._problems = {one.number: problem for one in known if (problem := _problem(one)) is not None}
        self._problems |= _missing(known)
        self.applicable = [one.number for one in known if one.number not in self._problems]
        self.number = known[0].number if known and known[0].number in self.applicable else None

    def alarms(self) -> list[str]:
        return [f"none of its groups is opened or settled here: {problem}" for problem in self._problems.values()]

    def _refuse_others(self, rules: RunRules, in_force: SettlementRules) -> None:
        own = declared(self._config).model_dump(mode="json")
        differing = [
            (name, own[name], value)
            for name, value in in_force.model_dump(mode="json").items()
            if own[name] != value and self._given(name)
        ]
        if not differing:
            return
        told = "; ".join(
            f"{self._source(name)}{name} is {shortened(found)}; expected {shortened(expected)}"
            for name, found, expected in differing[:MAX_NAMED]
        )
        change = " ".join(f"--set {as_argument(name, found)}" for name, found, _ in differing[:MAX_NAMED])
        raise ConfigError(
            f"{told}, as the run has it ({rules.origin}). How groups are settled belongs to the run: leave the setting out, or "
            f"change it for groups that are opened from now on: tandem rules {self._store.run}{_of_policy(rules)} {change}"
        )

    def _given(self, name: str) -> bool:
        settings = OF_UNTRAINED if name == "untrained_policies" else (name,)
        return not self._config.model_fields_set.isdisjoint(settings)

    def _source(self, name: str) -> str:
        settings = OF_UNTRAINED if name == "untrained_policies" else (name,)
        sources = [source for one in settings if (source := self._config.source_of(one))]
        return f"{sources[0]}: " if sources else ""


def as_argument(name: str, value: Any) -> str:
    """As an argument of `tandem rules --set`."""
    text = value if isinstance(value, str) else json.dumps(value)
    return shlex.quote(f"{name}={text}")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{setting: (before, after)}."""
    return {name: (old.get(name), value) for name, value in new.items() if old.get(name) != value}


def _of_policy(rules: RunRules) -> str:
    return "" if rules.policy == DEFAULT_POLICY else f" --policy {rules.policy}"


def _missing(known: Sequence[RunRules]) -> dict[int, str]:
    """Numbers that groups may have and that were not read. `known`: the newest first."""
    there = {one.number for one in known}
    lacking = [number for number in range(FIRST, known[0].number) if number not in there] if known else []
    return {n: f"{RunRules.collection} {known[0].policy}:{n} is gone or cannot be read; restore it" for n in lacking}


def _problem(rules: RunRules) -> str | None:
    """Why this process cannot settle by these rules; None: it can."""
    try:
        estimator = settlement_of(rules).advantage
    except MalformedDocument as exc:
        return str(exc)
    if is_registered(estimator):
        return None
    return (
        f"advantage is {shortened(estimator)} ({rules.origin}), which is registered nowhere in this process; start it with the "
        "advantage_modules that register it"
    )
