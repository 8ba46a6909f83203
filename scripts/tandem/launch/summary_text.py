"""Prints the end of a run: each policy's curve and held-out rewards, the figures, and the paths of the results."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shared.names import DEFAULT_POLICY
from shared.processes.waits import as_clock
from tandem.launch.disk_use import disk_text
from tandem.launch.figures import StepMetrics
from tandem.launch.places import TANDEM
from tandem.launch.settings import LaunchConfig
from tandem.launch.summary import eval_points


def show(
    console: Console, policies: Sequence[LaunchConfig], summary: dict[str, Any], metrics: Mapping[str, StepMetrics]
) -> None:
    """Print the summary. `policies`: the tasks' owner first."""
    from tandem.launch.curve import terminal_text

    width = min(console.width, 100)
    for policy, of_policy in metrics.items():
        whose = f"of {policy} " if len(policies) > 1 else ""
        points = eval_points(summary, policy)
        if of_policy.lines:
            console.print(terminal_text(of_policy, points, width, whose=whose), highlight=False)
        evaluations = _of(summary, policy)["eval"]
        if evaluations:
            console.print(_eval_table(evaluations, whose))
        if len(points) > 2:
            text = ", ".join(f"{p.step}: {p.reward:.3f}" for p in points)
            console.print(
                f"held-out reward {whose}by step  {text}   (all: {_tandem(policies[0], 'eval')})", soft_wrap=True
            )
    console.print(_figure_table(summary, list(metrics)))
    console.print(_paths(policies, summary), highlight=False, soft_wrap=True)


def _of(summary: dict[str, Any], policy: str) -> dict[str, Any]:
    """The policy's part of the summary."""
    policy_summary: dict[str, Any] = summary if policy == summary["policy"] else summary["other_policies"][policy]
    return policy_summary


def _eval_table(evaluations: dict[str, Any], whose: str) -> Table:
    names = [f"{name} (version {_versions_text(e)})" for name, e in evaluations.items()]
    table = Table(f"held-out reward {whose}".rstrip(), *names)
    sources = sorted({source for e in evaluations.values() for source in e["by_source"]})
    for source in sources:
        table.add_row(source, *(_reward_text(e["by_source"].get(source)) for e in evaluations.values()))
    table.add_row("[bold]all[/bold]", *(f"[bold]{_reward_text(e)}[/bold]" for e in evaluations.values()))
    return table


def _versions_text(figures: dict[str, Any]) -> str:
    return str(figures["version"]) if "version" in figures else ", ".join(map(str, figures["versions"])) or "none"


def _reward_text(figures: dict[str, Any] | None) -> str:
    if figures is None or figures["reward"] is None:
        return "–"
    low, high = figures["interval"]
    return f"{figures['reward']:.3f} [{low:.3f}, {high:.3f}]  (n={figures['n']})"


def _figure_table(summary: dict[str, Any], policies: Sequence[str]) -> Table:
    """Figures of the run, then of each policy."""
    tokens, speeds, faults = summary["tokens"], summary["tokens_per_s"], summary["faults"]
    table = Table.grid(padding=(0, 2))
    table.add_row("time", ", ".join(f"{name} {as_clock(s)}" for name, s in summary["seconds"].items()))
    table.add_row(
        "episodes", f"{summary['episodes']:,}; {tokens['sampled']:,} tokens sampled, {speeds['sampler']} tokens/s"
    )
    table.add_row("faults", ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in faults.items()))
    for policy in policies:
        if len(policies) > 1:
            table.add_row(f"[bold]{policy}[/bold]")
        for name, text in _training_rows(_of(summary, policy)):
            table.add_row(name, text)
    return table


def _training_rows(trained: dict[str, Any]) -> list[tuple[str, str]]:
    tokens, speed, stale = trained["tokens"], trained["tokens_per_s"]["trainer"], trained["staleness"]
    chosen = trained["selection"]
    merging = f"{tokens['merged']:,} tokens in one tree per group; {tokens['unmerged']:,} in one row per reply"
    if tokens["linear"] != tokens["unmerged"]:
        merging += f", {tokens['linear']:,} in one row per episode"
    if tokens["merged"]:
        merging += f": {tokens['unmerged'] / tokens['merged']:.2f} times fewer"
    return [
        (
            "steps",
            f"{trained['steps']}; {tokens['trained']:,} tokens trained; {speed} tokens/s, counted without merging",
        ),
        ("forward, merging", merging),
        ("staleness", f"mean {stale['mean']}, max {stale['max']}"),
        (
            "durations",
            f"mean of all episodes {chosen['duration_all_s']} s, of those trained {chosen['duration_trained_s']} s (last steps)",
        ),
        ("mismatch", f"{trained['mismatch_mean_nats']} nats"),
    ]


def _paths(policies: Sequence[LaunchConfig], summary: dict[str, Any]) -> str:
    config = policies[0]
    folder = _short(config.folder)
    lines = []
    for each in policies:
        trained = _of(summary, each.policy)
        lines += [f"checkpoint    {_short(trained['checkpoint'])}", f"model         {_short(trained['model'])}"]
    metrics = [f"{_short(each.policy_folder)}/metrics.jsonl" for each in policies]
    lines += [
        f"disk          {disk_text(config.folder, folder)}",
        f"figures       {folder}/summary.json, {', '.join(metrics)}, {folder}/reward.png",
        f"logs          {config.log_folder}/{config.run}_*.log",
    ]
    if config.db_connection_string is None:
        lines += [
            "",
            "To read the data, restart its server (it prints the connection string for Compass), then in another terminal:",
        ]
        lines += [f"    {TANDEM} mongod --folder {folder}/mongodb"]
    else:
        lines += ["", "To read the data:"]
    lines += [f"    {_tandem(config, verb)}" for verb in ("view", "status", "show", "eval", "audit")]
    return "\n".join(lines)


def _tandem(config: LaunchConfig, verb: str) -> str:
    """The command line, with the policy for `tandem eval`."""
    named = verb == "eval" and config.policy != DEFAULT_POLICY
    return f"{TANDEM} {verb} {config.run}" + (f" --policy {config.policy}" if named else "")


def _short(path: str | Path | None) -> str:
    return "–" if path is None else os.path.relpath(path)
