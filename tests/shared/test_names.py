"""Names of runs, policies, splits and sources: none can escape a folder, database or document field."""

from pathlib import Path

import pytest

from shared.configuration.loading import read_policies
from shared.errors import ConfigError
from shared.names import LONGEST, check_label, check_name, check_run_name, shortened
from shared.store import Store
from shared.tasks.files import ImportTarget
from shared.tasks.mix import TaskSource

BAD = (
    "../../x",
    "/etc/x",
    "",
    "\0",
    "a\0b",
    "a.b",
    "..",
    ".",
    "$a",
    "-x",
    "a b",
    "a:b",
    "a/b",
    "a\nb",
    "é",
    "\udcff",
    "x" * (LONGEST + 1),
)


@pytest.mark.parametrize("name", BAD)
def test_a_name_with_other_characters_is_refused_everywhere(tmp_path: Path, name: str) -> None:
    for check in (check_run_name, lambda text: check_name("policy", text)):
        with pytest.raises(ConfigError, match=r"name .*: expected 1 to 60 of"):
            check(name)
    for made in ({"split": name}, {"policy": name}):
        with pytest.raises(ConfigError, match=r"name .*: expected"):
            ImportTarget(**made)
    for made in ({"split": name}, {"name": name}):
        with pytest.raises(ValueError, match=r"name .*: expected"):
            TaskSource(**{"name": "a", "file": Path("f"), **made})


@pytest.mark.parametrize("name", ["main", "Run-1", "x" * LONGEST, "0", "a_b-c"])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert check_run_name(name) == check_name("policy", name) == name


@pytest.mark.parametrize("name", ["admin", "local", "config"])
def test_system_databases_are_refused_as_run_names(name: str) -> None:
    with pytest.raises(ConfigError, match="system database"):
        check_run_name(name)


async def test_the_store_opens_no_database_by_another_name() -> None:
    with pytest.raises(ConfigError, match="run name"):
        async with Store.open("mongodb://127.0.0.1:1", "../x", timeout_s=0.1):
            pass


@pytest.mark.parametrize("name", ["../../x", "a.b", "$where", ""])
def test_a_policy_of_the_yaml_has_a_plain_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.yml"
    path.write_text(f"policies: {{'{name}': {{}}}}\n")
    with pytest.raises(ConfigError, match=r"c.yml: policies: policy name .*: expected 1 to 60"):
        read_policies(path)


@pytest.mark.parametrize("text", ["", " ", "a\nb", "\0", "\ud83d", "a\u2028b", "é" * 129])
def test_a_label_is_one_line_of_utf_8(text: str) -> None:
    with pytest.raises(ConfigError, match="expected text on one line"):
        check_label("source", text)
    assert check_label("source", "openai/gsm8k v1.0: é") == "openai/gsm8k v1.0: é"


def test_long_values_are_shortened() -> None:
    assert len(shortened("x" * 10_000)) < 120
