"""The list of `python -m tests.mutants` fits the tree: the changed line and the test of each mutant exist."""

import ast

import pytest

from tests.conftest import ROOT
from tests.mutant_list import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutants_line_is_unique_in_its_file_and_its_test_exists(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, f"{mutant.file}: {mutant.old!r}"
    ast.parse(source.replace(mutant.old, mutant.new))
    module = ast.parse((ROOT / mutant.test_file).read_text(encoding="utf-8"))
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert mutant.test_name in functions


def test_every_mutant_has_a_unique_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
