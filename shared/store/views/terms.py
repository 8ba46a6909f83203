"""What a run was set up to do: what a step costs, and its rules. For people."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.documents.rules import RunRules
from shared.documents.run import Run
from shared.errors import MalformedDocument
from shared.names import cut
from shared.rules.run_rules import Rules, TemplateRules
from shared.store import Store

MOST_CHARS = 80  # of one value, such as a system prompt
ALWAYS = ("advantage", "temperature", "default_scorer", "template_digest")


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Of one policy. `costs`: sentences, none for a run without a launcher. `rules`: the newest number and its origin.
    `chosen`: its rules that differ from the defaults, and always `ALWAYS`."""

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
    terms = []
    for policy in policies:
        cost = None if run is None else run.step_costs.get(policy)
        costs = [] if cost is None else [text for text in (cost.size_text(), cost.time_text()) if text]
        rules = next(iter(await store.rules.all(policy)), None)
        origin = None if rules is None else rules.origin
        terms.append(RunTerms(policy, costs, origin, chosen_of(rules)))
    return [one for one in terms if one.costs or one.rules]


async def terms_of_run(store: Store, policy: str) -> list[RunTerms]:
    try:
        run = await store.runs.get()
    except MalformedDocument:  # the page says so
        run = None
    return await terms_of(store, run, [policy])


async def rules_texts(store: Store) -> list[str]:
    """The newest rules of every policy that has some."""
    terms = await terms_of(store, None, await store.rules.policies())
    return [one.rules_text for one in terms if one.rules_text is not None]


def chosen_of(rules: RunRules | None) -> Mapping[str, Any]:
    if rules is None:
        return {}
    defaults = Rules(prompt=TemplateRules(template_digest="")).plain()
    return {
        name: _scorers(value) if name == "default_scorers" else value
        for name, value in rules.values.items()
        if name in ALWAYS or value != defaults.get(name)
    }


def _scorers(listed: Any) -> str:
    return ", ".join(f"{one.get('weight', 1):g} x {one.get('name')}" for one in listed if isinstance(one, Mapping))


def shown(value: Any) -> str:
    return "none" if value is None else cut(str(value), MOST_CHARS)
