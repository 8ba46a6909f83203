"""The rooms of `trainer/`: each imports only what stands below it. A room is a folder; a line of the root stands above all but
the other programs.
"""

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_import_rule import imported

ROOMS = (  # from the ground up
    "settings",  # read without torch
    "process",  # peers, store, signals, the end
    "losses",
    "trees",
    "modeling",  # one forward
    "reporting",
    "step",  # one optimizer step
    "data",
    "checkpoints",
    "publishing",
    "run",  # what a trainer writes into its run
    "",  # the root: the driver, the launcher, export
    "sft",
    "what_if",
)
PROGRAMS = {"__main__", "export", "launch", "loop", "quantize", "verify"}  # of the root


def rooms_above(text: str, path: Path) -> list[str]:
    """The imports of this file of `trainer/` (its path in it) that point at a higher room."""
    own = ROOMS.index(path.parts[0] if len(path.parts) > 1 else "")
    names = [name.split(".") for name, _ in imported(ast.parse(text), ("trainer", *path.with_suffix("").parts))]
    rooms = [parts[1] for parts in names if parts[0] == "trainer" and len(parts) > 1]
    return [room for room in rooms if ROOMS.index("" if room in PROGRAMS else room) > own]


def test_no_import_of_the_trainer_points_at_a_higher_room() -> None:
    trainer = ROOT / "trainer"
    upward = {}
    for file in sorted(trainer.rglob("*.py")):
        path = file.relative_to(trainer)
        if above := rooms_above(file.read_text(encoding="utf-8"), path):
            upward[path.as_posix()] = above
    assert upward == {}


def test_every_folder_of_the_trainer_is_a_room_and_every_file_of_its_root_a_program() -> None:
    trainer = ROOT / "trainer"
    assert {file.parent.name for file in trainer.glob("*/*.py")} <= set(ROOMS)
    assert {file.stem for file in trainer.glob("*.py")} - {"__init__"} <= PROGRAMS


@pytest.mark.parametrize(
    ("text", "path", "above"),
    [
        ("from trainer.step.learner import Learner", "modeling/model.py", ["step"]),
        ("from trainer.loop import train", "run/status.py", ["loop"]),
        ("from trainer.losses import LossConfig", "modeling/model.py", []),
        ("import trainer.run.takeover", "data/stream.py", ["run"]),
        ("def f():\n    from trainer.sft.training import main", "export.py", ["sft"]),
        ("from trainer.modeling.model import load_model", "modeling/forward.py", []),
    ],
)
def test_an_import_that_points_upward_is_seen(text: str, path: str, above: list[str]) -> None:
    assert rooms_above(text, Path(path)) == above
