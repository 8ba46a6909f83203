"""A user's own code by name: it is what it should be, or the start ends with a message that says what is there instead."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from sampler.sampler import AsyncSampler
from shared.document import Document
from shared.errors import ConfigError
from shared.own_code import load_class


def test_a_class_is_found_by_its_name() -> None:
    assert load_class("payload_model", "shared.document:Document", BaseModel) is Document


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("shared.document", "sampler is 'shared.document'; expected package.module:Class"),
        (":Document", "sampler is ':Document'; expected package.module:Class"),
        ("shared.absent:A", "sampler: 'shared.absent' cannot be imported: ModuleNotFoundError: No module"),
        (".document:A", "sampler: '.document' cannot be imported: TypeError: the 'package' argument is required"),
        ("tests_broken:A", "sampler: 'tests_broken' cannot be imported: SyntaxError"),
        (
            "shared.document:Absent",
            "shared.document has no such name; expected a subclass of sampler.sampler.AsyncSampler",
        ),
        ("shared.document:SCHEMA_VERSION", "shared.document has 2 there; expected a subclass"),
        ("shared.document:Document", "has <class 'shared.document.Document'> there; expected a subclass"),
    ],
)
def test_what_is_no_such_class_is_named_with_what_is_there(
    path: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests_broken.py").write_text("def")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as raised:
        load_class("sampler", path, AsyncSampler)
    assert said in str(raised.value)
