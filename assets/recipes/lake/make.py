"""Tasks of the recipe: Gymnasium's frozen lake, four by four, which does not slip.

python -m assets.recipes.lake.make FOLDER           in a Python that has gymnasium: writes train, eval and warmup.jsonl

The warm-up is of walkers who know one step of three and take the others at random, so that it teaches how a move is written and
little of where the goal is. The lake is the same in all tasks: the score is of how often the model arrives, and not of lakes that
it has not seen.
"""

import random
import sys
from pathlib import Path

from assets.frozen_lake.make import moves_nearer, task, walk, write

TRAIN, EVAL, WALKS = 320, 40, 48


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", TRAIN), ("eval", EVAL)):
        write(folder / f"{split}.jsonl", [task(f"{split}{number}", number) for number in range(count)])
    rng, nearer = random.Random(2), moves_nearer()
    write(folder / "warmup.jsonl", [{"messages": walk(rng, nearer), "tools": []} for _ in range(WALKS)])


if __name__ == "__main__":
    main()
