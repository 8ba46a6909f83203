"""Sample the grid world's tasks: `python -m assets.gridworld.make_tasks` writes train.jsonl and eval.jsonl next to this file.

Promise: the same seed gives the same files, and no task is in both.
"""

import json
import random
from pathlib import Path

SEED = 7
SIZE = 6
LONGEST = 4
COUNTS = {"train": 700, "eval": 80}


def walks(rng: random.Random) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """All (start, goal) pairs at a distance of 1 to LONGEST steps, shuffled."""
    places = [(east, north) for east in range(SIZE) for north in range(SIZE)]
    found = [(a, b) for a in places for b in places if 0 < abs(a[0] - b[0]) + abs(a[1] - b[1]) <= LONGEST]
    rng.shuffle(found)
    return found


def main() -> None:
    drawn = iter(walks(random.Random(SEED)))
    for split, count in COUNTS.items():
        lines = [
            {
                "id": f"walk-{start[0]}{start[1]}-{goal[0]}{goal[1]}",
                "query": "Walk to the goal.",
                "metadata": {"size": SIZE, "start": start, "goal": goal},
                "source": "gridworld",
            }
            for start, goal in (next(drawn) for _ in range(count))
        ]
        path = Path(__file__).with_name(f"{split}.jsonl")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
