"""What lies where in a job's output folder: the trainers write it, the launcher and `tandem export-model` find it."""

import re

CHECKPOINTS = "checkpoints"  # a folder of folders
METRICS_FILE = "metrics.jsonl"  # a line for each step
STEP_FOLDER = re.compile(r"step-(\d{6,})")  # a write in progress has another name


def step_folder(step: int) -> str:
    """The name that `STEP_FOLDER` matches."""
    return f"step-{step:06d}"
