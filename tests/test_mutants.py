"""The list of `python -m tests.mutants` fits the tree: the changed line and the test of each mutant exist."""

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mutant_rows import MUTANTS
from tests.mutant_rows.mutant import Mutant
from tests.mutants import copied


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutants_line_is_unique_in_its_file_and_its_test_exists(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, f"{mutant.file}: {mutant.old!r}"
    if mutant.file.endswith(".py"):
        ast.parse(source.replace(mutant.old, mutant.new))
    module = ast.parse((ROOT / mutant.test_file).read_text(encoding="utf-8"))
    tests = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    machines = [
        node.targets[0] for node in module.body if isinstance(node, ast.Assign)
    ]  # hypothesis' `Machine.TestCase`
    assert mutant.test_name in tests | {target.id for target in machines if isinstance(target, ast.Name)}


def test_every_mutant_has_a_unique_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_tools_of_a_gateway_in_the_copy_can_read_it_as_users_of_their_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)  # as tempfile makes folders
    assert copied(tmp_path).stat().st_mode & 0o777 == 0o755
