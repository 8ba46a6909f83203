"""Tasks of three reasoning-gym families, and warm-start conversations of a careless pupil.

python -m assets.reasoning_gym.make FOLDER        in a Python that has reasoning-gym; writes train, eval and demonstrations.jsonl

Every second answer is right, the others slip on purpose. A model tuned on them knows what an answer looks like and half of
how to find it. Reinforcement learning teaches the rest. No question of the evaluation occurs in training or in a demonstration,
and no answer is frequent: a model that always says the same has a score near 0.
"""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assets.jsonl import write
from sampler.environments.adapters.reasoning_gym import ReasoningGymEnvironment
from sampler.environments.own_random import OwnRandom

SMALL = {"min_rows": 2, "min_cols": 2, "max_rows": 2, "max_cols": 2, "min_transforms": 1, "max_transforms": 1}
# {family: the environment's custom_task}
FAMILIES: dict[str, dict[str, Any]] = {
    "rotate_matrix": {"config": {"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 1}},
    "spiral_matrix": {"config": {"min_n": 2, "max_n": 2}},
    "manipulate_matrix": {"config": SMALL},
}
KNOWING = 0.5
TASKS = {
    "eval": 60,
    "train": 400,
    "demonstrations": 4000,
}  # of each family, in this order: a later one has no question of eval
FIRST_SEED = {"eval": 0, "train": 1_000, "demonstrations": 100_000}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    held_out = {family: {question for _, question, _ in drawn(family, "eval", set())} for family in FAMILIES}
    for split in ("eval", "train"):
        write(folder / f"{split}.jsonl", tasks(split, {} if split == "eval" else held_out))
    lines = [*demonstrations(held_out)]
    random.Random(1).shuffle(lines)
    write(folder / "demonstrations.jsonl", lines)


def tasks(split: str, held_out: dict[str, set[str]]) -> Iterator[dict[str, Any]]:
    """The families by turns."""
    for row in zip(*(list(drawn(family, split, held_out.get(family, set()))) for family in FAMILIES), strict=True):
        for family, (seed, *_) in zip(FAMILIES, row, strict=True):
            metadata = {"environment": family, "index": seed, "custom_task": FAMILIES[family]}
            name = f"{split}-{family}-{seed}"
            yield {"id": name, "query": name, "source": family, "sampler": "environment", "metadata": metadata}


def drawn(family: str, split: str, without: set[str]) -> Iterator[tuple[int, str, str]]:
    """(seed, question, answer) of as many tasks as the split has."""
    seed, left = FIRST_SEED[split], TASKS[split]
    while left:
        question, answer = asked(family, seed)
        if question not in without:
            yield seed, question, answer
            left -= 1
        seed += 1


def asked(family: str, seed: int) -> tuple[str, str]:
    world = ReasoningGymEnvironment(family)
    with OwnRandom(seed).drawn():
        messages = world.start(seed, FAMILIES[family]).messages
    return messages[-1]["content"], world.answer


def demonstrations(held_out: dict[str, set[str]]) -> Iterator[dict[str, Any]]:
    rng = random.Random("demonstrations")
    for family in FAMILIES:
        system = ReasoningGymEnvironment(family).start(0, FAMILIES[family]).messages[0]
        for _, question, answer in drawn(family, "demonstrations", held_out[family]):
            said = answer if rng.random() < KNOWING else slip(answer, rng)
            reply = {"role": "assistant", "content": f"<answer>{said}</answer>"}
            yield {"messages": [system, {"role": "user", "content": question}, reply], "tools": []}


def slip(answer: str, rng: random.Random) -> str:
    """The figures in another order."""
    figures = re.findall(r"\d", answer)
    shuffled = rng.sample(figures, len(figures))
    return re.sub(r"\d", lambda _: shuffled.pop(), answer)


if __name__ == "__main__":
    main()
