"""Tasks of three reasoning-gym families, and warm-start conversations of a careless pupil.

python -m assets.reasoning_gym.make FOLDER        in a Python that has reasoning-gym; writes train, eval and demonstrations.jsonl

Every second answer is right, the others slip on purpose. A model tuned on them knows what an answer looks like and half of
how to find it. Reinforcement learning teaches the rest. No question of the evaluation occurs in training or in a demonstration.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sampler.environments.adapters.reasoning_gym import ReasoningGymEnvironment

# {family: the environment's custom_task}
FAMILIES: dict[str, dict[str, Any]] = {
    "letter_counting": {"config": {"min_words": 1, "max_words": 2}},
    "gcd": {"config": {"min_value": 2, "max_value": 30}},
    "syllogism": {"config": {"invalid_ratio": 0.6, "inversion_probability": 0.0}},
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
    messages = world.start(seed, FAMILIES[family]).messages
    return messages[-1]["content"], world.answer


def demonstrations(held_out: dict[str, set[str]]) -> Iterator[dict[str, Any]]:
    rng = random.Random("demonstrations")
    for family in FAMILIES:
        system = ReasoningGymEnvironment(family).start(0, FAMILIES[family]).messages[0]
        for _, question, answer in drawn(family, "demonstrations", held_out[family]):
            said = answer if rng.random() < KNOWING else slip(family, answer, rng)
            reply = {"role": "assistant", "content": f"<answer>{said}</answer>"}
            yield {"messages": [system, {"role": "user", "content": question}, reply], "tools": []}


def slip(family: str, answer: str, rng: random.Random) -> str:
    """The other of Yes and No, or a number nearby."""
    if family == "syllogism":
        return {"Yes": "No", "No": "Yes"}[answer]
    return str(
        rng.choice([near for near in range(int(answer) - 3, int(answer) + 4) if near > 0 and near != int(answer)])
    )


def write(path: Path, lines: Any) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
