"""`tandem` loads the command that is called, and no other."""

import subprocess
import sys

import pytest

from shared.names import TRAIN_SPLIT
from tandem.commands.application import COMMANDS, EVERY, GROUPS, application_for
from tests.conftest import ROOT
from tests.surroundings import python_path

LOADED = """
import sys
from tandem.commands.application import application_for
application_for(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith("tandem.commands.")), "numpy" in sys.modules)
"""


def loaded(*arguments: str) -> list[str]:
    command = [sys.executable, "-c", LOADED, *arguments]
    environment = {"PYTHONPATH": python_path(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


def test_status_loads_no_other_command_and_no_numpy() -> None:
    """Half a second of a command that people repeat."""
    found = loaded("status", "demo")
    others = {f"tandem.commands.{file}" for file, *_ in [*COMMANDS.values(), *GROUPS.values()]} - {
        "tandem.commands.status"
    }
    assert "tandem.commands.status" in found
    assert not others & set(found)
    assert found[-1] == "False"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["statu"]])
def test_what_names_no_command_has_all_of_them(arguments: list[str]) -> None:
    app = application_for(arguments)
    named = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    assert sorted(map(str, named)) == sorted(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_each_command_is_found_by_its_name_alone(name: str) -> None:
    app = application_for([name, TRAIN_SPLIT])
    assert [one.name for one in (*app.registered_commands, *app.registered_groups)] == [name]
