"""`tandem eval`: results of a run's evaluation rounds."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shared.evaluation.pass_rates import Estimate
from shared.evaluation.rounds import EvaluationRound, Figures, evaluation_rounds
from shared.names import DEFAULT_POLICY
from tandem.commands.connect import AsJson, Connection, RunName, console, table, warn, with_store

WIDE = 160
MAX_CAUSES = 5

EXAMPLES = """Examples:

`tandem eval demo`  every round, by step, and the last complete one by source

`tandem eval demo --version 12`  the round at version 12 by source

`tandem eval demo --json | jq '.rounds[] | [.step, .overall.pass_at["1"].value]'`  the curve, for programs
"""


def evaluation(
    run: RunName,
    policy: Annotated[str, typer.Option("--policy", help="The policy that was evaluated.")] = DEFAULT_POLICY,
    version: Annotated[int | None, typer.Option("--version", min=0, help="Show this round by source.")] = None,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Held-out tasks by weight version: pass@1, pass@k and mean reward with 95 % confidence intervals.

    A round plays every task of split **eval** at one version. **pass@k** is the unbiased estimate of Chen et al. 2021
    (an episode passes with a score of 1 or more), its interval Wilson's for as many trials as tasks; that of the
    reward is a bootstrap over tasks. Episodes that the infrastructure failed have no score and are counted apart.
    """
    rounds = with_store(db_connection_string, run, lambda store: evaluation_rounds(store, policy), read_only=True)
    if as_json:
        report = {"run": run, "policy": policy, "rounds": [played.to_json() for played in rounds]}
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    if not rounds:
        warn(f"run {run} has no held-out tasks of policy {policy}: nothing was evaluated")
    out = console()
    print_wide(out, curve_table(rounds, f"evaluation of run {escape(run)}, policy {escape(policy)}"))
    shown = (
        [p for p in rounds if p.version == version] if version is not None else [p for p in rounds if p.complete][-1:]
    )
    for played in shown:
        print_wide(out, source_table(played))
        out.print(escape(ends_text(played.overall)), soft_wrap=True)


def curve_table(rounds: Sequence[EvaluationRound], title: str) -> Table:
    """One row per round."""
    ks = sorted({k for played in rounds for k in played.overall.pass_at})
    others = sorted({other for played in rounds for other in played.overall.other_rewards})
    rewards = ("reward", *(f"reward of {other}" for other in others))
    made = table("step #", "version #", "tasks #", *(f"pass@{k}" for k in ks), *rewards, "failed #", title=title)
    for played in rounds:
        made.add_row(
            _number(played.step),
            _number(played.version),
            f"{played.done}/{played.total}",
            *(estimate_text(played.overall.pass_at.get(k)) for k in ks),
            estimate_text(played.overall.reward),
            *(estimate_text(played.overall.other_rewards.get(other)) for other in others),
            str(played.overall.failed),
        )
    return made


def source_table(played: EvaluationRound) -> Table:
    """One row per source, and the total."""
    ks = sorted(played.overall.pass_at)
    others = sorted(played.overall.other_rewards)
    title = f"version {_number(played.version)}, sampled by {', '.join(map(str, played.versions)) or 'none'}"
    for other, versions in played.other_versions.items():
        title += f"; {other} by {', '.join(map(str, versions))}"
    rewards = ("reward", *(f"reward of {other}" for other in others))
    names = ("source", "tasks #", "episodes #", *(f"pass@{k}" for k in ks), *rewards, "turns #", "tokens #", "failed #")
    made = table(*names, title=escape(title))
    for name, figures in [*played.by_source.items(), ("all", played.overall)]:
        made.add_row(
            escape(name),
            str(figures.tasks),
            str(figures.episodes),
            *(estimate_text(figures.pass_at.get(k)) for k in ks),
            estimate_text(figures.reward),
            *(estimate_text(figures.other_rewards.get(other)) for other in others),
            f"{figures.turns_mean:.2f}",
            f"{figures.tokens_mean:.1f}",
            str(figures.failed),
        )
    return made


def print_wide(out: Console, made: Table) -> None:
    """Print a table: wrapped in a narrow terminal, unwrapped to a file or pipe."""
    if not out.is_terminal:
        out.width = max(out.width, WIDE)
    out.print(made)


def ends_text(figures: Figures) -> str:
    """Terminations of scored episodes, and the most frequent causes of failed ones, one per line."""
    ends = ", ".join(f"{name} {n}" for name, n in figures.terminations.items()) or "none"
    causes = [f"failed, {n} ×: {cause}" for cause, n in list(figures.causes.items())[:MAX_CAUSES]]
    return "\n".join([f"ends of episodes: {ends}; {figures.tokens:,} tokens sampled", *causes])


def estimate_text(estimate: Estimate | None) -> str:
    return "–" if estimate is None else str(estimate)


def _number(value: int | None) -> str:
    return "any" if value is None else str(value)
