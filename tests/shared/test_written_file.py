"""Files are written atomically, or an error is raised."""

from contextlib import suppress
from pathlib import Path

import pytest

from shared.errors import DataError
from shared.files.written_file import write_text_whole, written_whole
from tests.full_disk import room_for


def test_a_written_file_is_alone_in_its_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    for text in ("one", "größer"):
        write_text_whole(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_an_error_and_an_older_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for old in (None, "old"):
        if old is not None:
            path.write_text(old)
        with (
            room_for(100),
            pytest.raises(DataError, match=r"a\.json could not be written: .*File too large; free disk space"),
        ):
            write_text_whole(path, "x" * 101)
        assert [file.read_text() for file in tmp_path.iterdir()] == ([] if old is None else [old])


def test_a_folder_that_cannot_be_created_or_an_existing_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"a\.json could not be written: .*File exists: '.*/file'; free disk space"):
        write_text_whole(tmp_path / "file" / "a.json", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder could not be written: .*Is a directory"):
        write_text_whole(tmp_path / "folder", "x")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_an_abandoned_write_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyError), written_whole(tmp_path / "a.json") as beside:
        beside.write_text("half")
        raise KeyError
    assert not list(tmp_path.iterdir())
