"""Write the bundled example's data: tasks and world (committed), or warm-start demonstrations (not committed).

    python scripts/make_example.py                                    # assets/example/{train,eval,mix/*}.jsonl, world.json
    python scripts/make_example.py --sft 40000 --out output/sft.jsonl  # 40,000 demonstrations

Promise: the same arguments give the same bytes, on any machine.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shared.processes.interrupt import run_command

EXAMPLE_DIR = Path(__file__).resolve().parent.parent / "assets" / "example"
sys.path.insert(0, str(EXAMPLE_DIR))  # the example is not an installed package

from demonstrations import demonstrations  # noqa: E402  # found by the line above
from tasks import Example, build_example, mixture  # noqa: E402  # likewise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the data (default assets/example); with --sft, a file")
    parser.add_argument("--seed", type=int, default=7, help="seed of the world, tasks and demonstrations (default 7)")
    parser.add_argument("--sft", type=int, metavar="N", help="write N demonstrations instead of the data")
    arguments = parser.parse_args()
    example = build_example(arguments.seed)
    if arguments.sft is None:
        write_data(example, arguments.seed, arguments.out or EXAMPLE_DIR)
    else:
        path = arguments.out or Path("output/example_sft.jsonl")
        write_jsonl(path, demonstrations(example, arguments.sft, arguments.seed))


def write_data(example: Example, seed: int, folder: Path) -> None:
    write_jsonl(folder / "train.jsonl", example.train)
    write_jsonl(folder / "eval.jsonl", example.eval)
    for name, tasks in mixture(example).items():
        write_jsonl(folder / "mix" / f"{name}.jsonl", tasks)
    registry = {
        "seed": seed,
        "owners": example.world.owners,
        "favorite_colors": example.world.favorite_colors,
    }
    (folder / "world.json").write_text(json.dumps(registry, indent=0) + "\n")


def write_jsonl(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    run_command(main)
