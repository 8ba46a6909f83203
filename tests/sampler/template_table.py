"""`python -m tests.sampler.template_table [--seeds N] [--published DIR]`: chat templates against full renderings, as a table.

A turn is checked when the prompt of the context has exactly the ids of a full rendering of the same messages. `clean`: it only
appended; `branched`: the template shows older turns differently than before.
"""

import argparse
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from tests.sampler.conversations import play
from tests.sampler.families import FAMILIES, PUBLISHED

HEAD = ("template", "reasoning", "conversations", "turns", "clean", "branched", "tokens", "equal")


def rows(seeds: int, only: Collection[str]) -> list[tuple[str, ...]]:
    found = []
    for family in [family for name, family in FAMILIES.items() if name in only]:
        for mode in family.modes:
            count: Counter[str] = Counter()
            for seed in range(seeds):
                for check in play(family, mode, seed):
                    count["turns"] += 1
                    count[check.prompt.cause.value] += 1
                    count["tokens"] += len(check.wanted)
                    same = check.found == check.wanted
                    count["equal"] += len(check.wanted) if same else 0
            mode_text = mode if len(family.modes) > 1 else "-"
            numbers = (seeds, count["turns"], count["clean"], count["template_rewrite"], count["tokens"])
            percent = f"{100 * count['equal'] / count['tokens']:.4g} %"
            found.append((family.name, mode_text, *map(str, numbers), percent))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, default=50, help="conversations per template and mode (default %(default)s)"
    )
    parser.add_argument(
        "--published",
        type=Path,
        metavar="DIR",
        help="folder with chat templates as their makers published them (qwen25.jinja, …): only these rows, on these texts",
    )
    given = parser.parse_args()
    PUBLISHED.extend([given.published] if given.published else [])
    only = {path.stem for path in given.published.glob("*.jinja")} if given.published else set(FAMILIES)
    table = [HEAD, *rows(given.seeds, only)]
    table.insert(1, ("---",) * len(HEAD))
    widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
    for row in table:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


if __name__ == "__main__":
    main()
