"""docs/train/losses.md has every loss and every preset, with the preset's loss, advantage and source."""

import re
from pathlib import Path

import pytest

from trainer.losses import LossConfig, LossName
from trainer.settings.presets import PRESETS

PAGE = Path(__file__).parents[1] / "docs" / "train" / "losses.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines() if line[:1] == "|"
]


def row_of(name: str) -> list[str]:
    (row,) = [row for row in ROWS if name in re.findall(r"`([^`]+)`", row[0])]
    return row


@pytest.mark.parametrize("name", list(LossName))
def test_every_loss_has_a_formula_and_a_source(name: LossName) -> None:
    _, formula, source = row_of(name)
    assert formula
    assert source


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_its_loss_its_advantage_and_its_source(name: str) -> None:
    preset = PRESETS[name]
    _, what, advantage, source = row_of(name)
    assert str(preset.settings["loss"]) in what
    assert advantage in (f"`{preset.advantage}`", "")
    for number in re.findall(r"\d{4}\.\d{5}", preset.source)[:1]:
        assert number in source or not source


def test_the_default_loss_is_marked_and_the_default_settings_are_those_of_minirl() -> None:
    defaults = LossConfig()
    assert row_of(defaults.loss)[0] == f"`{defaults.loss}` (default)"
    own = {name: value for name, value in PRESETS["minirl"].settings.items() if hasattr(defaults, name)}
    assert {name: getattr(defaults, name) for name in own} == own
