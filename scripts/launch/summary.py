"""The end of a run in figures: `output/RUN/summary.json`, and the same for people to read."""

import json
import math
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.launch.display import format_s
from scripts.launch.figures import EvalPoint, Snapshot, StepMetrics, mean, take_snapshot
from scripts.launch.settings import LaunchConfig
from shared.evaluation import EvaluationRound, Figures
from shared.store import Store


async def summarize(
    store: Store, config: LaunchConfig, metrics: StepMetrics, rounds: list[EvaluationRound], seconds: dict[str, float]
) -> dict[str, Any]:
    """Every figure of the run so far. `rounds`: by step. `seconds` by phase, all launches of the run together."""
    snapshot = await take_snapshot(store, config.policy)
    newest = await store.versions.newest(config.policy)
    episodes, sampled = await store.questions.finished_within(None)
    checkpoints = sorted((config.folder / "checkpoints").glob("step-*[0-9]"))
    return {
        "run": config.run,
        "eval": {name: _eval_figures(played) for name, played in _ends(rounds).items()},
        "eval_curve": [played.to_json() for played in rounds],
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "steps": metrics.last_step,
        "episodes": episodes,
        "tokens": _token_figures(metrics, sampled),
        "tokens_per_s": _speeds(metrics, sampled, seconds),
        "staleness": {
            "mean": _clean(mean(metrics.column("data/staleness_mean"))),
            "max": max(metrics.column("data/staleness_max"), default=None),
        },
        "mismatch_mean_nats": _clean(mean(metrics.column("loss/mismatch_mean_nats"))),
        "faults": await _faults(store, snapshot),
        "checkpoint": str(checkpoints[-1]) if checkpoints else None,
        "model": None if newest is None else newest.path,
        "reward_curve": str(config.folder / "reward.png"),
    }


def _ends(rounds: list[EvaluationRound]) -> dict[str, EvaluationRound]:
    """The first round and the last."""
    return dict(zip(("before", "after"), (rounds[:1] + rounds[1:][-1:]), strict=False))


def _eval_figures(played: EvaluationRound) -> dict[str, Any]:
    by_source = {source: _reward(figures) for source, figures in played.by_source.items()}
    return {"version": played.version, **_reward(played.overall), "by_source": by_source}


def _reward(figures: Figures) -> dict[str, Any]:
    reward, first = figures.reward, figures.pass_at.get(1)
    return {
        "reward": None if reward is None else round(reward.value, 6),
        "interval": None if reward is None else [round(reward.low, 6), round(reward.high, 6)],
        "pass_at_1": None if first is None else round(first.value, 6),
        "n": figures.episodes,
    }


def _token_figures(metrics: StepMetrics, sampled: int) -> dict[str, int]:
    """`unmerged`: one forward per reply. `linear`: one per episode. `merged`: one per prefix tree of a group."""
    return {
        "sampled": sampled,
        "trained": int(sum(metrics.column("data/tokens_trained"))),
        "unmerged": int(sum(metrics.column("data/tokens_flat"))),
        "linear": int(sum(metrics.column("data/tokens_linear"))),
        "merged": int(sum(metrics.column("data/tokens_tree"))),
        "computed": int(sum(metrics.column("data/tokens_computed"))),
    }


def _speeds(metrics: StepMetrics, sampled: int, seconds: dict[str, float]) -> dict[str, float | None]:
    """Sampler: what all samplers sampled, by the time they had. Trainer: tokens of one forward per reply, by step time."""
    sampling_s = sum(seconds.get(phase, 0.0) for phase in ("eval_before", "training", "eval_after"))
    step_s = sum(metrics.column("time/total_s"))
    return {
        "sampler": round(sampled / sampling_s, 1) if sampling_s else None,
        "trainer": round(sum(metrics.column("data/tokens_flat")) / step_s, 1) if step_s else None,
    }


async def _faults(store: Store, snapshot: Snapshot) -> dict[str, int]:
    """`lost_attempts`: episodes that the plumbing or an expired lease cost, and that were played again."""
    data = await store.data.count_by_status()
    return {
        "engine_retries": int(snapshot.total("retries")),
        "lost_attempts": snapshot.slots.get("failures", 0),
        "failed_slots": snapshot.slots.get("failed", 0),
        "stale_records": data.get("stale", 0),
    }


def _clean(value: float) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else round(value, 6)


# ---------------------------------------------------------------------- for people


def write(config: LaunchConfig, summary: dict[str, Any], metrics: StepMetrics) -> None:
    """summary.json and reward.png, each written beside and renamed."""
    from scripts.launch.curve import write_png  # matplotlib: a second that only the end of a run needs

    config.folder.mkdir(parents=True, exist_ok=True)
    picture = config.folder / "reward.tmp.png"
    write_png(picture, metrics, eval_points(summary), config.run)
    os.replace(picture, config.folder / "reward.png")
    beside = config.folder / "summary.json.tmp"
    beside.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    os.replace(beside, config.folder / "summary.json")


def eval_points(summary: dict[str, Any]) -> list[EvalPoint]:
    """Rounds that have a step and a reward."""
    curve = [(e["step"], e["overall"]["reward"]) for e in summary["eval_curve"]]
    return [EvalPoint(step, r["value"], r["low"], r["high"]) for step, r in curve if step is not None and r is not None]


def show(console: Console, config: LaunchConfig, summary: dict[str, Any], metrics: StepMetrics) -> None:
    from scripts.launch.curve import terminal_text

    if metrics.lines:
        console.print(terminal_text(metrics, eval_points(summary), width=min(console.width, 100)), highlight=False)
    console.print(_eval_table(summary["eval"]))
    if len(summary["eval_curve"]) > 2:
        points = ", ".join(f"{p.step}: {p.reward:.3f}" for p in eval_points(summary))
        console.print(f"held-out reward by step  {points}   (all figures: tandem eval {config.run})", soft_wrap=True)
    console.print(_figure_table(summary))
    console.print(_paths(config, summary), highlight=False, soft_wrap=True)


def _eval_table(evaluations: dict[str, Any]) -> Table:
    table = Table("held-out reward", *(f"{name} (version {e['version']})" for name, e in evaluations.items()))
    sources = sorted({source for e in evaluations.values() for source in e["by_source"]})
    for source in sources:
        table.add_row(source, *(_reward_text(e["by_source"].get(source)) for e in evaluations.values()))
    table.add_row("[bold]all[/bold]", *(f"[bold]{_reward_text(e)}[/bold]" for e in evaluations.values()))
    return table


def _reward_text(figures: dict[str, Any] | None) -> str:
    if figures is None or figures["reward"] is None:
        return "–"
    low, high = figures["interval"]
    return f"{figures['reward']:.3f} [{low:.3f}, {high:.3f}]  (n={figures['n']})"


def _figure_table(summary: dict[str, Any]) -> Table:
    tokens, speeds, faults, stale = (summary[k] for k in ("tokens", "tokens_per_s", "faults", "staleness"))
    merging = f"{tokens['merged']:,} with, {tokens['unmerged']:,} without ({tokens['linear']:,} per episode)"
    if tokens["merged"]:
        merging += f": {tokens['unmerged'] / tokens['merged']:.2f} times fewer"
    table = Table.grid(padding=(0, 2))
    table.add_row("time", ", ".join(f"{name} {format_s(s)}" for name, s in summary["seconds"].items()))
    table.add_row("steps, episodes", f"{summary['steps']}, {summary['episodes']:,}")
    table.add_row("tokens", f"{tokens['sampled']:,} sampled, {tokens['trained']:,} trained")
    table.add_row("forward, merging", merging)
    table.add_row("tokens/s", f"sampler {speeds['sampler']}, trainer {speeds['trainer']}")
    table.add_row("staleness", f"mean {stale['mean']}, max {stale['max']}")
    table.add_row("mismatch", f"{summary['mismatch_mean_nats']} nats")
    table.add_row("faults", ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in faults.items()))
    return table


def _paths(config: LaunchConfig, summary: dict[str, Any]) -> str:
    run, folder = config.run, _short(config.folder)
    lines = [
        f"checkpoint    {_short(summary['checkpoint'])}",
        f"model         {_short(summary['model'])}",
        f"figures       {folder}/summary.json, {folder}/metrics.jsonl, {folder}/reward.png",
        f"logs          logs/{run}_*.log",
    ]
    if config.db_connection_string is None:
        lines += [
            "",
            "Look at the data: start its server again (it prints the connection string for Compass), and beside it",
        ]
        lines += [f"    .venv/bin/tandem mongod --folder {folder}/mongodb"]
    else:
        lines += ["", "Look at the data:"]
    lines += [f"    .venv/bin/tandem {verb} {run}" for verb in ("status", "show", "eval", "audit")]
    return "\n".join(lines)


def _short(path: str | Path | None) -> str:
    return "–" if path is None else os.path.relpath(path)
