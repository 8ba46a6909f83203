"""Folders for merged weights: never shared, never leaked."""

from pathlib import Path

from sampler.engine.keeper.cache import own_folder


def test_a_folder_has_one_holder_and_the_next_holder_finds_a_killed_ones_files(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "left").touch()
    with own_folder(tmp_path) as first, own_folder(tmp_path) as second:
        assert (first.name, second.name) == ("0", "1")
        assert (first / "left").exists()
        with own_folder(tmp_path) as third:
            assert third.name == "2"
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    with own_folder(tmp_path) as again:
        assert again.name == "0"
