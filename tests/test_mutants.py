"""The list of `python -m tests.mutants` fits the tree: what a mutant changes stands there, and so does its test."""

import ast

import pytest

from tests.conftest import ROOT
from tests.mutant_list import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_what_a_mutant_changes_stands_once_in_its_file_and_its_test_is_there(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, f"{mutant.file}: {mutant.old!r}"
    ast.parse(source.replace(mutant.old, mutant.new))
    module = ast.parse((ROOT / mutant.test_file).read_text(encoding="utf-8"))
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert mutant.test_name in functions


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
