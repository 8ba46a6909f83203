"""Facts that two services must agree on are defined once and imported."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ("shared", "sampler", "trainer", "scripts")

# {what: (how it would be written once more, the file that may, or none)}
FACTS = {
    "when something is taken for dead": (r'"\$heartbeat"', "shared/store/liveness.py"),
    "from which score on an episode passes": (r"score\w*\s*[<>]=?\s*\d", None),
    "names of splits": (r'split"?\]?\s*(?:==|!=|=|:)\s*"(?:train|eval)"', None),
    "names in an output folder": (
        r'"metrics\.jsonl"|/ "checkpoints"|f"step-\{step:06d\}',
        "shared/files/output_names.py",
    ),
    "states in which a task is over, or may be played": (
        r"[\[(]TaskStatus\.\w+(?:\.value)?,\s",
        "shared/documents/states.py",
    ),
    "name of the only policy": (r'policy\S*\s*(?:==|!=)\s*"main"|Field\(\s*"main"|\)\] = "main"', None),
}
# Of one name and one value, and yet two facts: changing one is no reason to change the other.
COINCIDENCES = {
    "ALIKE": "the rounding of rewards in a group, and of advantages in a batch",
    "FAILED": "the exit status of a program, and of a fork, whose server imports the standard library alone",
    "MAX_MESSAGE_CHARS": "kept of an engine's refusal, and of an error of the user's own code",
    "POLL_S": "how often a keeper looks at an offer, and a trainer for groups",
    "_POLL_S": "two waits for a process to end, of different kinds",
}

# The same of texts.
TEXT_COINCIDENCES = {
    ("<tool_call>", "</tool_call>"): "tags of tool calls, of three model families that are parsed apart",
    ".": "between a namespace and its tool, and behind a session's id in the state of a request",
}


@cache
def sources() -> dict[str, str]:
    files = [file for service in SERVICES for file in sorted((ROOT / service).rglob("*.py"))]
    texts = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
    return {
        file: text for file, text in texts.items() if not file.startswith("scripts/docs_site/")
    }  # Sphinx's settings


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_is_defined_only_in_its_file(fact: str) -> None:
    pattern, home = FACTS[fact]
    found = {file for file, text in sources().items() if re.search(pattern, text)}
    assert found == ({home} if home else set())


def test_no_constant_is_defined_in_two_files() -> None:
    where: defaultdict[tuple[str, object], list[str]] = defaultdict(list)
    for file, text in sources().items():
        for node in ast.parse(text).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
                continue
            if isinstance(node.value.value, int | float):
                where[ast.unparse(node.targets[0]), node.value.value].append(file)
    twice = {name: files for (name, _), files in where.items() if len(files) > 1}
    assert twice.keys() - COINCIDENCES.keys() == set(), twice
    assert COINCIDENCES.keys() - twice.keys() == set(), "told, and no longer so"


def texts(node: ast.expr) -> object:
    """The value of a text, or of several; None: it is something else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Tuple) and all(isinstance(one, ast.Constant) for one in node.elts):
        values = tuple(one.value for one in node.elts if isinstance(one, ast.Constant))
        return values if values and all(isinstance(value, str) for value in values) else None
    return None


def test_no_text_is_a_constant_of_two_files() -> None:
    where: defaultdict[object, set[str]] = defaultdict(set)
    for file, text in sources().items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and (value := texts(node.value)) is not None:
                where[value].add(file)
    twice = {value: files for value, files in where.items() if len(files) > 1}
    assert twice.keys() == TEXT_COINCIDENCES.keys(), twice


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for package in ("shared", "sampler", "trainer", "scripts"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
