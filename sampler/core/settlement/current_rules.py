"""The run's rules, as one process knows them: declared or compared at its start, followed while it runs.

    start      no rules yet ─▶ this process's settings become rules 1        rules ─▶ what is given here must be the same
    running    a new number ─▶ groups that this process opens get it, and episodes of each group go by the group's number
               a number that cannot be applied here ─▶ none of its groups is played or settled here, and an alarm says why

No setting of a process reaches an episode or a settlement but under the rules of the group.
"""

from collections.abc import Awaitable, Callable, Sequence

from sampler.core.settings.core_config import CoreConfig
from sampler.core.settlement.declared_rules import declared, refuse_differences, rules_from, under_rules
from shared.documents import Task
from shared.documents.rules import FIRST, RunRules
from shared.errors import ConfigError, MalformedDocument
from shared.names import shortened
from shared.rules.groups import SettlementRules, is_registered
from shared.rules.run_rules import Rules
from shared.store import Store

Prepare = Callable[[int, CoreConfig], Awaitable[None]]  # raises ConfigError for what the process cannot play


async def settlement_of_group(store: Store, task: Task) -> SettlementRules:
    """The rules that the group was opened with. Raises DataError."""
    return rules_from(await store.rules.of_task(task)).settlement


async def _nothing(number: int, config: CoreConfig) -> None:
    """Of a process that plays no episodes."""


class CurrentRules:
    """`number`: of the groups that this process opens; None: it opens none. `applicable`: numbers whose groups it settles;
    `playable`: whose episodes it plays. `prepare`: is awaited once for each number, with the settings under its rules."""

    def __init__(self, store: Store, config: CoreConfig, worker: str) -> None:
        self._store, self._config, self._worker = store, config, worker
        self.prepare: Prepare = _nothing
        self.number: int | None = None
        self.applicable: Sequence[int] = ()
        self.playable: Sequence[int] = ()
        self._own: Rules | None = None
        self._known: dict[int, RunRules] = {}
        self._configs: dict[int, CoreConfig] = {}
        self._unsettled: dict[int, str] = {}  # by number: why its groups are not settled here
        self._unplayed: dict[int, str] = {}  # why its episodes are not played here

    async def starting_config(self) -> CoreConfig:
        """The settings under the run's rules, or this process's own while there are none. Raises ConfigError if something
        else was given here than the run has."""
        known = await self._store.rules.all(self._config.policy)
        if known:
            self._compare(known[0])
        return under_rules(self._config, rules_from(known[0]) if known else self._declared())

    async def begin(self) -> Rules:
        """Declare the rules if there are none. Raises ConfigError as `starting_config`, and for rules that this process cannot
        apply."""
        known = await self._store.rules.all(self._config.policy)
        if known:
            newest = known[0]
        else:
            sections = self._declared().sections()
            newest = await self._store.rules.add(RunRules.of(self._config.policy, FIRST, sections, self._worker))
        self._compare(newest)
        await self.refresh()
        problem = self._unsettled.get(newest.number) or self._unplayed.get(newest.number)
        if problem is not None:
            raise ConfigError(f"run {self._store.run}: {problem}")
        return rules_from(newest)

    async def refresh(self) -> None:
        known = await self._store.rules.all(self._config.policy)
        self._known = {one.number: one for one in known}
        unsettled = {one.number: problem for one in known if (problem := _problem(one)) is not None}
        self._unsettled = unsettled | _missing(known)
        unplayed = {
            one.number: problem
            for one in known
            if one.number not in unsettled and (problem := await self._play_problem(one)) is not None
        }
        self._unplayed = unplayed
        self.applicable = [number for number in self._known if number not in self._unsettled]
        self.playable = [number for number in self.applicable if number not in unplayed]
        self.number = known[0].number if known and known[0].number in self.playable else None

    async def plays(self, task: Task) -> bool:
        """Whether this process plays the task's episodes. Another process may have opened it with a newer number."""
        number = FIRST if task.rules is None else task.rules
        if number not in self._known:
            await self.refresh()
        return number in self.playable

    @property
    def config(self) -> CoreConfig:
        """The settings under the newest rules that this process plays by."""
        return self._config if self.number is None else self._configs[self.number]

    @property
    def claimable(self) -> Sequence[int] | None:
        """Numbers of the open groups of which it claims slots; None: any."""
        return self.playable if self._unplayed or self._unsettled else None

    def alarms(self) -> list[str]:
        return [
            *(f"none of its groups is opened or settled here: {problem}" for problem in self._unsettled.values()),
            *(f"none of its groups is opened or played here: {problem}" for problem in self._unplayed.values()),
        ]

    def _declared(self) -> Rules:
        if self._own is None:
            self._own = declared(self._config)
        return self._own

    def _compare(self, stored: RunRules) -> None:
        refuse_differences(self._config, self._declared(), stored, self._store.run)

    async def _play_problem(self, stored: RunRules) -> str | None:
        """Why this process cannot play episodes by these rules; None: it can."""
        if stored.number in self._configs:
            return None
        try:
            rules, own = rules_from(stored), self._declared()
        except ConfigError as exc:
            return f"{exc} ({stored.origin})"
        of_run, of_process = rules.plain(), own.plain()
        for name in ("template_digest", "other_policies"):
            if of_run[name] != of_process[name]:
                return (
                    f"{name} is {shortened(of_run[name])} ({stored.origin}), and {shortened(of_process[name])} in this "
                    f"process; start one that has it, or change it: tandem rules {self._store.run} --set {name}=…"
                )
        try:
            config = under_rules(self._config, rules)
            await self.prepare(stored.number, config)
        except ConfigError as exc:
            return f"{exc} ({stored.origin})"
        self._configs[stored.number] = config
        return None


def _missing(known: Sequence[RunRules]) -> dict[int, str]:
    """Numbers that groups may have and that were not read. `known`: the newest first."""
    there = {one.number for one in known}
    lacking = [number for number in range(FIRST, known[0].number) if number not in there] if known else []
    return {n: f"{RunRules.collection} {known[0].policy}:{n} is gone or cannot be read; restore it" for n in lacking}


def _problem(stored: RunRules) -> str | None:
    """Why this process cannot settle by these rules; None: it can."""
    try:
        estimator = rules_from(stored).group.advantage
    except MalformedDocument as exc:
        return str(exc)
    if is_registered(estimator):
        return None
    return (
        f"advantage is {shortened(estimator)} ({stored.origin}), which is registered nowhere in this process; start it with the "
        "advantage_modules that register it"
    )
