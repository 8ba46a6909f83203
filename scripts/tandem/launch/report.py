"""The report of a launch with `only_evaluate`: `evaluation.json`, `evaluation.md`, and terminal output."""

import json
import os
from typing import Any

from rich.console import Console

from shared.evaluation.rounds import EvaluationRound
from shared.files.written_file import write_text_whole
from shared.processes.waits import as_clock
from tandem.commands.evaluation import ends_text, estimate_text, print_wide, source_table
from tandem.launch.places import TANDEM
from tandem.launch.settings import LaunchConfig


def write(config: LaunchConfig, played: EvaluationRound, seconds: dict[str, float]) -> None:
    """Write both files atomically. Raises DataError if they cannot be written."""
    figures: dict[str, Any] = {
        "run": config.run,
        "model": str(config.model),
        "eval_files": [] if config.mix() else [str(path) for path in config.eval_files],
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        **played.to_json(),
    }
    texts = {
        "evaluation.json": json.dumps(figures, indent=2) + "\n",
        "evaluation.md": _markdown(config, played, seconds),
    }
    for name, text in texts.items():
        write_text_whole(config.folder / name, text, public=True)


def show(console: Console, config: LaunchConfig, played: EvaluationRound) -> None:
    print_wide(console, source_table(played))
    console.print(ends_text(played.overall), highlight=False, soft_wrap=True)
    folder = os.path.relpath(config.folder)
    console.print(f"report        {folder}/evaluation.json, {folder}/evaluation.md", highlight=False, soft_wrap=True)
    if config.db_connection_string is None:
        command = f"{TANDEM} mongod --folder {folder}/mongodb"
        console.print(f"the data      {command}, and in another terminal", highlight=False, soft_wrap=True)
    console.print(f"              {TANDEM} show {config.run}; {TANDEM} eval {config.run}", highlight=False)


def _markdown(config: LaunchConfig, played: EvaluationRound, seconds: dict[str, float]) -> str:
    ks = sorted(played.overall.pass_at)
    names = ["source", "tasks", "episodes", *(f"pass@{k}" for k in ks), "mean reward", "turns", "tokens", "failed"]
    rows = [names, ["---"] * len(names)]
    for name, figures in [*played.by_source.items(), ("**all**", played.overall)]:
        estimates = [*(figures.pass_at.get(k) for k in ks), figures.reward]
        means = [f"{figures.turns_mean:.2f}", f"{figures.tokens_mean:.1f}"]
        counts = [str(figures.tasks), str(figures.episodes)]
        rows.append([name, *counts, *map(estimate_text, estimates), *means, str(figures.failed)])
    lines = [
        f"# Evaluation {config.run}",
        "",
        f"Model `{config.model}`, {as_clock(sum(seconds.values()))} in total. Brackets: 95 % confidence intervals over tasks",
        "(pass@k: Wilson; reward: bootstrap). An episode passes with a score of 1 or more; pass@k is the unbiased estimate",
        "of Chen et al. 2021; turns and tokens are means per episode; failed episodes (infrastructure) have no score.",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        ends_text(played.overall).replace("\n", "  \n"),
    ]
    return "\n".join(lines) + "\n"
