"""`tandem rules`: what decides what is learned from a run's episodes, since when and by whom; and its one way to change."""

import getpass
import json
import socket
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from shared.configuration.plain_values import problems_of
from shared.configuration.sections import place_text, settings_of
from shared.documents.rules import RunRules
from shared.errors import ConfigError
from shared.names import DEFAULT_POLICY, check_name, shortened
from shared.rules.groups import ESTIMATORS, Advantage
from shared.rules.run_rules import SECTIONS, Rules
from shared.store import Store
from tandem.commands.connect import AsJson, Connection, RunName, console, table, with_store

EXAMPLES = """Examples:

`tandem rules demo`  every setting that decides what is learned, and what was changed when

`tandem rules demo --set advantage=zscore --set temperature=0.8`  for groups that are opened from now on

`tandem rules demo --set advantage=median --advantage_modules my_advantages`  an estimator of your own
"""

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SETTING=VALUE", help="Change a setting, by a new number. May be repeated."),
]
Policy = Annotated[str, typer.Option("--policy", help="The policy whose groups they are of.")]
Modules = Annotated[
    str, typer.Option("--advantage_modules", metavar="MODULE,…", help="Modules that register an estimator of --set.")
]


def rules(
    run: RunName,
    change: Changes = None,
    policy: Policy = DEFAULT_POLICY,
    advantage_modules: Modules = "",
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Show the rules of a run, which decide what is learned, or change them by a new number.

    The first sampler or gateway that starts declares them. Others read them, and one that is given something else is refused. A
    group is played, scored and settled by the number that was the newest when it was opened. Running samplers follow a change
    within seconds.
    """

    async def work(store: Store) -> None:
        check_name("policy", policy)
        if change:
            changed = await _changed(store, policy, change, advantage_modules)
            typer.echo(f"run {run}: {changed.origin}; for groups that are opened from now on")
            return
        known = await store.rules.all(policy)
        if as_json:
            typer.echo(json.dumps([one.model_dump(mode="json", by_alias=True) for one in known], indent=1))
        elif known:
            _print(known)
        else:
            typer.echo(f"run {run} has no rules of policy {policy} yet: the first sampler that starts declares them")

    with_store(db_connection_string, run, work)


async def _changed(store: Store, policy: str, change: Sequence[str], modules: str) -> RunRules:
    """Raises ConfigError; nothing is written then."""
    known = await store.rules.all(policy)
    if not known:
        raise ConfigError(
            f"run {store.run} has no rules of policy {policy} yet: the first sampler or gateway that starts declares them, as "
            "its settings are"
        )
    newest = known[0]
    ESTIMATORS.import_modules([name for name in modules.split(",") if name])
    rules = checked({**newest.values, **dict(_parsed(one) for one in change)})
    for engine in await store.services.live(policy):
        if (problem := rules.sampling.truncation.engine_problem(engine.kind)) is not None:
            raise ConfigError(f"engine {engine.url}: {problem}")
    expected = RunRules.of(policy, newest.number + 1, rules.sections(), f"{getpass.getuser()}@{socket.gethostname()}")
    if expected.digest == newest.digest:
        raise ConfigError(f"{newest.origin}, say this already")
    written = await store.rules.add(expected)
    if (written.digest, written.by) != (expected.digest, expected.by):
        raise ConfigError(f"{written.origin}, were written at the same moment; look at them and try again")
    return written


def checked(values: Mapping[str, Any]) -> Rules:
    """Raises ConfigError, which names the rule."""
    for name, seen, expected in problems_of(values):
        raise ConfigError(f"{name} is {seen}; expected {expected}")
    try:
        rules = Rules.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        name, problem = place_text(Rules, first["loc"]), first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            problem = f"no rule has this name; expected one of {', '.join(settings_of(Rules))}"
        raise ConfigError(f"{name} is {shortened(first['input'])}; {problem}" if name else problem) from exc
    ESTIMATORS.require(rules.group.advantage, list(Advantage))
    return rules


def _parsed(argument: str) -> tuple[str, Any]:
    name, sign, text = argument.partition("=")
    if not sign:
        raise ConfigError(f"--set is {shortened(argument)}; expected SETTING=VALUE")
    try:
        value = (
            None if text.lower() in ("none", "") else json.loads(text.lower() if text in ("True", "False") else text)
        )
    except (ValueError, RecursionError):
        value = text
    return name, value


def _print(known: Sequence[RunRules]) -> None:
    out, newest = console(), known[0]
    out.print(newest.origin, f"digest {newest.digest[:16]}", markup=False)
    settings = table("section", "rule", "value", "meaning")
    for section, kind in SECTIONS.items():
        for name, value in newest.sections[section].items():
            field = kind.model_fields.get(name)
            settings.add_row(section, name, _shown(value), (field.description if field is not None else "") or "")
    out.print(settings)
    for one, before in pairwise(known):
        changes = [
            f"{name} {_shown(before.values.get(name))} → {_shown(value)}"
            for name, value in one.values.items()
            if before.values.get(name) != value
        ]
        out.print(f"{one.origin}: {', '.join(changes)}", markup=False, soft_wrap=True)
    out.print(f"declared: {known[-1].origin}" if len(known) > 1 else "", markup=False, soft_wrap=True)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)
