"""Loading users' code by name: a wrong name stops the start with what was found instead."""

import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, model_validator

from sampler.core.episode.sampler import AsyncSampler
from shared.documents.base import Document
from shared.errors import ConfigError
from shared.user_code.loading import import_own, load_class
from shared.user_code.payload import own_payload_problems


def test_a_class_is_found_by_its_name() -> None:
    assert load_class("payload_model", "shared.documents.base:Document", BaseModel) is Document


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "shared.documents.base",
            "sampler is 'shared.documents.base'; expected package.module:Class, or FILE.py:Class",
        ),
        ("tests_raising:A", "tests_raising.py:2, in <module>: wrong = 1 / 0"),
        ("/nowhere/a.py:A", "'/nowhere/a.py' cannot be imported: FileNotFoundError: /nowhere/a.py is no file"),
        (":Document", "sampler is ':Document'; expected package.module:Class"),
        ("shared.absent:A", "sampler: 'shared.absent' cannot be imported: ModuleNotFoundError: No module"),
        (".document:A", "sampler: '.document' cannot be imported: TypeError: the 'package' argument is required"),
        (
            "tests_broken:A",
            "sampler: 'tests_broken' cannot be imported: SyntaxError: invalid syntax (tests_broken.py, line 1)",
        ),
        (
            "shared.documents.base:Absent",
            "shared.documents.base has no such name; expected a subclass of sampler.core.episode.sampler.AsyncSampler",
        ),
        ("shared.documents.base:SCHEMA_VERSION", "shared.documents.base has 4 there; expected a subclass"),
        ("shared.documents.base:Document", "has <class 'shared.documents.base.Document'> there; expected a subclass"),
    ],
)
def test_a_name_that_is_not_such_a_class_is_reported_with_what_was_found(
    path: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests_broken.py").write_text("def")
    (tmp_path / "tests_raising.py").write_text("first = 1\nwrong = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as raised:
        load_class("sampler", path, AsyncSampler)
    assert said in str(raised.value)


def test_a_file_is_one_module_under_any_path_and_finds_its_neighbors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tests_beside.py").write_text("from pydantic import BaseModel\n")
    (tmp_path / "tests_own_file.py").write_text("from tests_beside import BaseModel\nclass Mine(BaseModel): pass\n")
    found = load_class("payload_model", f"{tmp_path}/tests_own_file.py:Mine", BaseModel)
    assert found.__name__ == "Mine"
    monkeypatch.chdir(tmp_path)
    assert load_class("payload_model", "./tests_own_file.py:Mine", BaseModel) is found
    imported = import_own("scorer_modules", "tests_beside")
    assert import_own("scorer_modules", f"{tmp_path}/tests_beside.py") is imported


def test_a_model_whose_validator_raises_names_its_line() -> None:
    class Strange(BaseModel):
        @model_validator(mode="before")
        @classmethod
        def takes(cls, values: dict[str, int]) -> dict[str, int]:
            return {"n": values["absent"]}

    (problem,) = own_payload_problems(Strange, {"n": 1})
    assert problem.startswith(
        "\"metadata\" cannot be checked by Strange: KeyError: 'absent'; at tests/shared/test_own_code.py:"
    )
    assert problem.endswith('in takes: return {"n": values["absent"]}')
