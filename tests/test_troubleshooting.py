"""docs/run/troubleshooting.md: each message that it quotes is one that the code can print, each command and flag exists.

Some messages are brought about here, as a newcomer would, and found in the page.
"""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from sampler.engine.keeper.config import KeeperConfig
from sampler.settings import SamplerConfig
from shared.configuration.sections import settings_of
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem import app
from tandem.launch.settings import LaunchConfig
from tests.surroundings import python_path
from trainer.settings.config import TrainerConfig

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "run" / "troubleshooting.md").read_text(encoding="utf-8")
ANY = "\0"  # what a message says of this one case
SCRIPTS = ("scripts/setup.sh", "deploy/backup.sh")
OF_OTHERS = {"out of memory", "Bind for 127.0.0.1:27017 failed: port is already allocated"}  # CUDA's, Docker's
COMMAND_FLAGS = {"--help", "--json", "--watch", "--tools", "--folder", "--force-recreate", "--rm", "--volumes"}
FLAGS_OF_OTHERS = {"--nproc-per-node", "--ntasks-per-node"}


def rows() -> list[tuple[str, str]]:
    """(message, the whole row) of every table."""
    found = []
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith(("| message", "| what you see")):
            quoted = re.findall(r"`([^`]+)`", line.split(" | ")[0])
            found += [(text, line) for text in quoted if " " in text and text not in OF_OTHERS]
    return found


@cache
def messages() -> list[str]:
    """Every text in the code, with ANY where a value is put in, and every line of the scripts."""
    found = []
    for package in ("shared", "sampler", "trainer", "scripts"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            found += [text for node in ast.walk(tree) if id(node) not in docstrings and (text := text_of(node))]
    for script in SCRIPTS:
        found += [re.sub(r"\$\{?\w+\}?|\$\*", ANY, line) for line in (ROOT / script).read_text().splitlines()]
    return found


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(?:\.\d+)?[sdgf]", ANY, node.value)
    return ""


def is_said(message: str) -> bool:
    pattern = re.compile(r"[\s\S]*".join(re.escape(part.strip()) for part in message.split("…")))
    return any(pattern.search(text) for text in messages())


def test_the_page_has_the_rows() -> None:
    assert len(rows()) > 50


@pytest.mark.parametrize("message", sorted({message for message, _ in rows()}))
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    assert is_said(message), message


def test_a_message_that_nothing_prints_is_found() -> None:
    assert not is_said("no run … at …; walks there: …")
    assert is_said("no run … at …; runs there: …")


def test_every_command_of_tandem_and_every_flag_exists() -> None:
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert {name for name in re.findall(r"`?tandem ([a-z-]+) ", PAGE)} - {"tandem"} <= known
    options = {
        f"--{name}" for kind in (SamplerConfig, KeeperConfig, TrainerConfig, LaunchConfig) for name in settings_of(kind)
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", PAGE)) <= options | COMMAND_FLAGS | FLAGS_OF_OTHERS


def test_a_log_that_a_page_names_is_one_that_the_launcher_writes() -> None:
    source = (ROOT / "scripts" / "tandem" / "launch" / "services.py").read_text(encoding="utf-8")
    written = set(re.findall(r"""(?:part|log_path)\(f?"([a-z]+)""", source))
    assert written >= {"engine", "sample", "train", "tools", "environments"}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        named = re.findall(r"\b(?:RUN|demo|my_run)_([a-z]+)\w*\*?(?:_\d+)?\.log", page.read_text(encoding="utf-8"))
        assert set(named) <= written, page


def run(folder: Path, *words: str, **variables: str) -> str:
    """What a command that fails says in a folder without output of a run; the launcher goes to its own."""
    folder = ROOT if "tandem.launch" in words else folder
    environment = os.environ | {"PYTHONPATH": python_path(ROOT)} | variables
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0, done.stdout
    return " ".join((done.stdout + done.stderr).split())


NO_SERVER = "mongodb://127.0.0.1:1/"
LAUNCH = ("-m", "tandem.launch", "demo", "--method", "minirl")
SAMPLER = ("-m", "sampler", "--run", "demo", "--model_name_or_path", str(ROOT / "assets" / "example" / "model"))


@pytest.mark.parametrize(
    ("words", "variables", "row"),
    [
        pytest.param(
            ("-m", "tandem", "status", "demo"), {"HOME": "/nonexistent"}, "no database given", id="no-database"
        ),
        pytest.param(
            ("-m", "tandem", "status", "demo"), {"DB_CONNECTION_STRING": NO_SERVER}, "MongoDB at …", id="no-server"
        ),
        pytest.param((*LAUNCH, "--dry-run"), {"MODEL": "/nonexistent"}, "MODEL is …", id="no-model"),
        pytest.param((*LAUNCH, "--max_stepz", "3"), {}, "unknown …; did you", id="unknown-option"),
        pytest.param(
            (*SAMPLER, "--scorer_modules", '["no_such"]'),
            {"DB_CONNECTION_STRING": NO_SERVER},
            "cannot be imported: …",
            id="no-module",
        ),
    ],
)
def test_what_a_newcomer_sees_is_on_the_page(
    words: tuple[str, ...], variables: dict[str, str], row: str, tmp_path: Path
) -> None:
    assert says(run(tmp_path, *words, **variables), row)


def test_a_run_that_is_not_there_is_on_the_page(store: Store, mongod: Mongod, tmp_path: Path) -> None:
    said = run(tmp_path, "-m", "tandem", "status", "nosuchrun", DB_CONNECTION_STRING=mongod.connection_string)
    assert says(said, "no run … at …")


def says(said: str, row: str) -> bool:
    """Whether the one message of the page that begins so is in what was said."""
    (message,) = {message for message, _ in rows() if message.startswith(row)}
    return re.search(".*".join(map(re.escape, message.split("…"))), said) is not None or pytest.fail(said)
