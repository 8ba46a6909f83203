"""What a run's folder takes on disk, by part; the trainer's settings bound the large ones."""

import os
from collections import Counter
from pathlib import Path

from shared.files.output_names import CHECKPOINTS

PARTS = {CHECKPOINTS: "--keep_checkpoints", "versions": "--keep_versions", "mongodb": "the database"}
MEGA, GIGA = 10**6, 10**9


def disk_use(folder: Path) -> Counter[str]:
    """Bytes by part; a file of several names counts once. What vanishes meanwhile is left out."""
    bytes_of: Counter[str] = Counter()
    seen: set[tuple[int, int]] = set()
    for place, _, names in os.walk(folder):
        part = next((one for one in Path(place).relative_to(folder).parts if one in PARTS), "other")
        for name in names:
            try:
                status = os.lstat(os.path.join(place, name))
            except FileNotFoundError:
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                bytes_of[part] += status.st_size
    return bytes_of


def disk_text(folder: Path, shown: str) -> str:
    use = disk_use(folder)
    parts = [f"{part} {size_text(use[part])} ({bound})" for part, bound in PARTS.items() if use[part]]
    return f"{size_text(use.total())} in {shown}: " + ", ".join(parts)


def size_text(number: int) -> str:
    return f"{number / GIGA:.1f} GB" if number >= GIGA else f"{number / MEGA:.0f} MB"
