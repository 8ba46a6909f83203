"""A trainer killed in the middle of anything ends with the parameters, bit for bit, and the marks of one that never was."""

from pathlib import Path

from shared.processes.mongod import Mongod
from tests.trainer.trainer_kills import kill_many
from tests.trainer.training_child import PHASES

KILLS = 10  # by turns: most phases twice


def test_kills_change_neither_parameters_nor_accounting(mongod: Mongod, tmp_path: Path) -> None:
    found = kill_many(mongod.connection_string, tmp_path, kills=KILLS)
    assert sum(found.kills.values()) == KILLS
    assert set(found.kills) == set(PHASES)
    assert (found.wrong_parameters, found.wrong_marks, found.wrong_ends) == (0, 0, 0), found
