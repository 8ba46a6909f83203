"""Tasks of the recipe: three generators of reasoning-gym, on matrices of two by two.

python -m assets.recipes.reasoning.make FOLDER      in a Python that has reasoning-gym: writes train, eval and warmup.jsonl

The warm-up shows the form of an answer; every second one of its answers is wrong on purpose (`assets/reasoning_gym/make.py`). No
question of the evaluation occurs in training or in the warm-up, and no answer is frequent.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assets.jsonl import write
from assets.reasoning_gym.make import FAMILIES, asked, slip
from sampler.environments.adapters.reasoning_gym import FORM

EACH = {"eval": 24, "train": 320, "warmup": 64}  # questions of every generator
FIRST_SEED = {"eval": 0, "train": 1_000, "warmup": 100_000}

Question = tuple[str, int, str, str]  # generator, seed, question, answer


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    held_out = questions("eval", set())
    without = {question for *_, question, _ in held_out}
    write(folder / "eval.jsonl", [task("eval", *each) for each in held_out])
    write(folder / "train.jsonl", [task("train", *each) for each in questions("train", without)])
    write(folder / "warmup.jsonl", warmup(questions("warmup", without)))


def questions(split: str, without: set[str]) -> list[Question]:
    """The generators by turns."""
    rows = [list(drawn(family, split, without)) for family in FAMILIES]
    return [each for row in zip(*rows, strict=True) for each in row]


def drawn(family: str, split: str, without: set[str]) -> Iterator[Question]:
    seed, found = FIRST_SEED[split], 0
    while found < EACH[split]:
        question, answer = asked(family, seed)
        if question not in without:
            yield family, seed, question, answer
            found += 1
        seed += 1


def task(split: str, family: str, seed: int, *_: str) -> dict[str, Any]:
    metadata = {"environment": family, "index": seed, "custom_task": FAMILIES[family]}
    name = f"{split}-{family}-{seed}"
    return {"id": name, "query": name, "source": family, "sampler": "environment", "metadata": metadata}


def warmup(rows: list[Question]) -> list[dict[str, Any]]:
    rng, lines = random.Random(1), []
    for number, (*_, question, answer) in enumerate(rows):
        said = answer if number // len(FAMILIES) % 2 else slip(answer, rng)
        turns = [("system", FORM), ("user", question), ("assistant", f"<answer>{said}</answer>")]
        lines.append({"messages": [{"role": role, "content": text} for role, text in turns], "tools": []})
    rng.shuffle(lines)
    return lines


if __name__ == "__main__":
    main()
