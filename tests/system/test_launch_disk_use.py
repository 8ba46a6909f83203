"""The summary says what a run leaves on disk."""

import os
from pathlib import Path

from tandem.launch.disk_use import disk_text, disk_use


def test_a_folders_size_is_shown_by_part_with_the_setting_that_bounds_it(tmp_path: Path) -> None:
    sizes = {"checkpoints/step-000001/a": 3_000_000, "solver/checkpoints/step-000001/b": 1_000_000, "metrics.jsonl": 7}
    sizes |= {"versions/step-000001-1/model": 2_000_000, "mongodb/data/x": 500_000}
    for name, size in sizes.items():
        (path := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    os.link(tmp_path / "versions/step-000001-1/model", tmp_path / "versions/again")
    assert disk_use(tmp_path) == {"checkpoints": 4_000_000, "versions": 2_000_000, "mongodb": 500_000, "other": 7}
    said = disk_text(tmp_path, "output/demo")
    assert said.startswith(
        "7 MB in output/demo: checkpoints 4 MB (--keep_checkpoints), versions 2 MB (--keep_versions)"
    )
