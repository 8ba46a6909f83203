"""What a run was set up to do: what a step costs, and by which rules its groups are settled. For people."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.documents.rules import RunRules
from shared.documents.run import Run
from shared.errors import MalformedDocument
from shared.rules.groups import SettlementRules
from shared.store import Store


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Of one policy. `costs`: sentences, none for a run without a launcher. `rules`: the newest number and its origin.
    `chosen`: its settings that differ from the defaults, and always the estimator of advantages and the default scorers."""

    policy: str
    costs: list[str]
    rules: str | None
    chosen: Mapping[str, Any]

    @property
    def rules_text(self) -> str | None:
        if self.rules is None:
            return None
        return f"{self.rules}: {' '.join(f'{name}={shown(value)}' for name, value in self.chosen.items())}"


async def terms_of(store: Store, run: Run | None, policies: list[str]) -> list[RunTerms]:
    found = []
    for policy in policies:
        cost = None if run is None else run.step_costs.get(policy)
        costs = [] if cost is None else [text for text in (cost.size_text(), cost.time_text()) if text]
        rules = next(iter(await store.rules.all(policy)), None)
        origin = None if rules is None else rules.origin
        found.append(RunTerms(policy, costs, origin, {**chosen_of(rules), **scorers_of(run)}))
    return [one for one in found if one.costs or one.rules]


async def terms_of_run(store: Store, policy: str) -> list[RunTerms]:
    try:
        run = await store.runs.get()
    except MalformedDocument:  # the page says so
        run = None
    return await terms_of(store, run, [policy])


def chosen_of(rules: RunRules | None) -> Mapping[str, Any]:
    if rules is None:
        return {}
    defaults = SettlementRules().model_dump(mode="json")
    settled = rules.settlement
    return {name: value for name, value in settled.items() if name == "advantage" or value != defaults.get(name)}


def scorers_of(run: Run | None) -> Mapping[str, Any]:
    """Those of tasks that name none, as the last sampler was started."""
    given = {} if run is None else run.configs.get("sampler", {})
    listed = given.get("default_scorers") or [{"name": name} for name in [given.get("default_scorer")] if name]
    names = [f"{one.get('weight', 1):g} x {one.get('name')}" for one in listed if isinstance(one, Mapping)]
    return {"default_scorers": ", ".join(names)} if names else {}


def shown(value: Any) -> str:
    return "none" if value is None else str(value)
