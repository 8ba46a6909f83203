"""Folders below a directory shared by all users: another user's link or folder is neither followed nor used."""

import os
import tempfile
from pathlib import Path

import pytest

from sampler.engine.keeper.cache import own_folder
from shared.errors import ConfigError
from shared.files.private_folder import open_own, private_folder, temporary_folder
from shared.files.written_file import write_text_whole


@pytest.fixture
def shared_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, as long as the test lasts."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_temporary_folder_is_readable_for_its_user_alone_and_found_again(shared_temp: Path) -> None:
    folder = temporary_folder("run", "main")
    assert folder == temporary_folder("run", "main")
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent, folder.parent.parent)} == {0o700}


def test_a_link_in_its_place_is_not_followed(shared_temp: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (shared_temp / f"tandem-{os.getuid()}").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="is a link; expected a folder of this user"):
        temporary_folder("run")
    assert not list((tmp_path / "victim").iterdir())


def test_a_folder_of_another_user_or_open_to_others_is_refused(
    shared_temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shared_temp / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o770)
    with pytest.raises(ConfigError, match="its mode is 0770; expected 0700"):
        private_folder(own)
    own.chmod(0o700)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {owner}; expected one of user {owner + 1}"):
        private_folder(own)


def test_a_lock_that_is_a_link_empties_no_file(tmp_path: Path) -> None:
    victim, cache = tmp_path / "victim", tmp_path / "cache"
    victim.write_text("precious")
    cache.mkdir()
    (cache / "0.lock").symlink_to(victim)
    with pytest.raises(ConfigError, match=r"0\.lock: cannot be opened"), own_folder(cache):
        pass
    with pytest.raises(ConfigError, match="not a link"):
        open_own(cache / "0.lock")
    assert victim.read_text() == "precious"


def test_a_cache_that_is_a_link_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "0").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="is a link"), own_folder(tmp_path):
        pass


def test_a_link_under_the_name_that_a_file_is_written_beside_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a.tmp.json").symlink_to(victim)
    write_text_whole(tmp_path / "a.json", "new")
    assert (victim.read_text(), (tmp_path / "a.json").read_text()) == ("precious", "new")


def test_a_written_file_is_readable_for_its_user_alone_and_a_public_one_as_any_other_of_the_user(
    tmp_path: Path,
) -> None:
    (tmp_path / "other").touch()
    write_text_whole(tmp_path / "a.json", "new")
    write_text_whole(tmp_path / "b.json", "new", public=True)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b.json").stat().st_mode == (tmp_path / "other").stat().st_mode
