"""`tandem export-model`: a run's checkpoint as a Hugging Face directory."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from shared.evaluation.rounds import evaluation_rounds
from shared.files.output_names import CHECKPOINTS, STEP_FOLDER, step_folder
from shared.names import DEFAULT_POLICY
from shared.processes.run_module import command
from tandem.commands.connect import USAGE, Connection, RunName, complain, warn, with_store

EXAMPLES = """Examples:

`tandem export-model demo`  the newest checkpoint of output/demo, to output/demo/export/step-000070

`tandem export-model demo --best`  the one with the best held-out reward (the trainer's `eval_steps` and `keep_best_checkpoints`)

`tandem export-model demo --step 40 --output_dir models/demo-40 --dtype bfloat16`

`tandem export-model demo --adapter`  of a run with adapters: these alone, for PEFT, to output/demo/export/step-000070-adapter
"""


def export_model(
    run: RunName,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="The checkpoint's step. Default: the newest.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The kept checkpoint with the best held-out reward.")] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output_dir", help="Directory to write. Default: output/RUN/export/step-N[-adapter]."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32, bfloat16 or float64. Default: that of the parameters.")
    ] = None,
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="Export only the adapters, in PEFT's format. Default: merged into the model."),
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option("--run_dir", help="The trainer's output_dir. Default: output/RUN.")
    ] = None,
    model_name_or_path: Annotated[
        Path | None,
        typer.Option("--model_name_or_path", help="Folder of configuration and tokenizer, if moved."),
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="Whose held-out rewards --best compares.")] = DEFAULT_POLICY,
    db_connection_string: Connection = None,
) -> None:
    """Write a checkpoint as a directory that `transformers` and SGLang load.

    Reads the trainer's checkpoints, written by any number of processes. Needs torch, and a database for --best alone: the best
    step is the one with the highest reward in `tandem eval`.
    """
    folder = (run_dir or Path("output") / run) / CHECKPOINTS
    by_step = {int(m[1]): path for path in folder.glob("step-*") if (m := STEP_FOLDER.fullmatch(path.name))}
    if not by_step or (step is not None and step not in by_step):
        there = ", ".join(map(str, sorted(by_step))) or "none"
        wanted = "a checkpoint" if step is None else f"the checkpoint of step {step}"
        complain(f"{folder}: expected {wanted}; found those of steps: {there} (--run_dir names another folder)")
        raise typer.Exit(USAGE)
    if best:
        if step is not None:
            complain("--best and --step exclude each other")
            raise typer.Exit(USAGE)
        step = _best(run, policy, folder, sorted(by_step), db_connection_string)
    chosen = max(by_step) if step is None else step
    target = output_dir or folder.parent / "export" / (step_folder(chosen) + "-adapter" * adapter)
    words = command("trainer.export", "--checkpoint", str(by_step[chosen]), "--output_dir", str(target))
    words += ["--dtype", dtype] if dtype else []
    words += ["--adapter", "true"] if adapter else []
    words += ["--model_name_or_path", str(model_name_or_path)] if model_name_or_path else []
    raise typer.Exit(subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode)


def _best(run: str, policy: str, folder: Path, steps: list[int], given: str | None) -> int:
    """The kept step with the highest held-out reward of a complete round, the later of equal ones. Exits with a message."""
    rounds = with_store(given, run, lambda store: evaluation_rounds(store, policy), read_only=True)
    rewards = {r.step: r.overall.reward.value for r in rounds if r.complete and r.step is not None and r.overall.reward}
    judged = [step for step in steps if step in rewards]
    if judged:
        best = max(judged, key=lambda step: (rewards[step], step))
        highest = max(rewards.values())
        if highest > rewards[best]:
            lost = max(step for step, reward in rewards.items() if reward == highest)
            warn(
                f"step {lost} was better ({highest:.3f}), but its checkpoint is not kept; step {best}: {rewards[best]:.3f}"
            )
        return best
    complain(f"{folder}: no kept checkpoint was evaluated; kept: {', '.join(map(str, steps))}; see eval_steps")
    raise typer.Exit(USAGE)
