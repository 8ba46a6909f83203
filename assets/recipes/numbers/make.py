"""Tasks of the recipe: which of two numbers is larger.

python -m assets.recipes.numbers.make FOLDER        writes train.jsonl and eval.jsonl

No pair of the evaluation occurs in training, in neither order. The larger number is the first as often as the second, so that
always naming one of them is right half of the time.
"""

import random
import sys
from pathlib import Path

from assets.jsonl import write

TRAIN, EVAL, NUMBERS = 640, 64, range(1, 100)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pairs(random.Random(7), TRAIN + EVAL)
    write(folder / "train.jsonl", tasks("train", drawn[:TRAIN]))
    write(folder / "eval.jsonl", tasks("eval", drawn[TRAIN:]))


def pairs(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Distinct pairs; by turns the first and the second number is the larger one."""
    found: dict[tuple[int, int], None] = {}
    while len(found) < count:
        low, high = sorted(rng.sample(NUMBERS, 2))
        found[low, high] = None
    return [(high, low) if number % 2 else (low, high) for number, (low, high) in enumerate(found)]


def tasks(split: str, drawn: list[tuple[int, int]]) -> list[dict[str, str]]:
    return [
        {
            "id": f"{split}-{number}",
            "query": f"Which number is larger, {first} or {second}? Reply with one number only.",
            "answer": str(max(first, second)),
            "scorer": "first_number",
        }
        for number, (first, second) in enumerate(drawn)
    ]


if __name__ == "__main__":
    main()
