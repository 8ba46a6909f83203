"""`tandem database prepare`: the passwords' files."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tandem.commands import database


def test_calls_that_make_a_password_at_once_use_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would tell the server its own, and only one is in the file."""
    all_looked, made = Barrier(8), database.secrets.token_urlsafe

    def at_once(length: int) -> str:
        all_looked.wait(60)
        return made(length)

    monkeypatch.setattr(database.secrets, "token_urlsafe", at_once)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: database._password(tmp_path / "admin"), range(8)))
    assert found == {(tmp_path / "admin" / "password").read_text()}
    assert [file.name for file in (tmp_path / "admin").iterdir()] == ["password"], "no temporary file is left"
