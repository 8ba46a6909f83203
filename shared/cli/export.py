"""`tandem export-model`: a run's checkpoint as a Hugging Face directory."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from shared.cli.connect import USAGE, RunName, complain
from shared.evaluation.rounds import best_steps
from shared.files.output_names import CHECKPOINTS, METRICS_FILE, STEP_FOLDER, step_folder
from shared.processes.run_module import command

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
) -> None:
    """Write a checkpoint as a directory that `transformers` and SGLang load.

    Reads the trainer's checkpoints, written by any number of processes. Needs torch, but no database.
    """
    folder = (run_dir or Path("output") / run) / CHECKPOINTS
    kept = {int(m[1]): path for path in folder.glob("step-*") if (m := STEP_FOLDER.fullmatch(path.name))}
    if not kept or (step is not None and step not in kept):
        there = ", ".join(map(str, sorted(kept))) or "none"
        wanted = "a checkpoint" if step is None else f"the checkpoint of step {step}"
        complain(f"{folder}: expected {wanted}; found those of steps: {there} (--run_dir names another folder)")
        raise typer.Exit(USAGE)
    if best:
        judged = [s for s in best_steps(folder.parent / METRICS_FILE, sys.maxsize) if s in kept]
        if not judged or step is not None:
            none = f"{folder}: no checkpoint was evaluated; see eval_steps"
            complain("--best and --step exclude each other" if judged else none)
            raise typer.Exit(USAGE)
        step = judged[0]
    chosen = max(kept) if step is None else step
    target = output_dir or folder.parent / "export" / (step_folder(chosen) + "-adapter" * adapter)
    words = command("trainer.export", "--checkpoint", str(kept[chosen]), "--output_dir", str(target))
    words += ["--dtype", dtype] if dtype else []
    words += ["--adapter", "true"] if adapter else []
    words += ["--model_name_or_path", str(model_name_or_path)] if model_name_or_path else []
    raise typer.Exit(subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode)
