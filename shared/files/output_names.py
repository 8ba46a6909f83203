"""File names in a job's output folder, written by trainers and read by the launcher and `tandem export-model`."""

import re

CHECKPOINTS = "checkpoints"  # contains one folder per step
METRICS_FILE = "metrics.jsonl"  # one line per step
STEP_FOLDER = re.compile(r"step-(\d{6,})")  # a write in progress has another name


def step_folder(step: int) -> str:
    """A step's folder name, matched by `STEP_FOLDER`."""
    return f"step-{step:06d}"
