"""Tasks of the recipe: three generators of reasoning-gym.

python -m assets.recipes.reasoning.make FOLDER      in a Python that has reasoning-gym: writes train, eval and warmup.jsonl

The warm-up shows the answer's form on a few questions. Every second one of its answers is that of another question, so that it
teaches no answer. No question of the evaluation occurs in training or in the warm-up.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sampler.environments.adapters.reasoning_gym import ReasoningGymEnvironment
from sampler.environments.own_random import OwnRandom

GENERATORS: dict[str, dict[str, Any]] = {  # their configurations
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "number_sorting": {"min_numbers": 3, "max_numbers": 4, "min_value": 0, "max_value": 99, "max_decimals": 0},
    "spiral_matrix": {"min_n": 2, "max_n": 3},
}
EACH = {"eval": 32, "train": 320, "warmup": 24}  # of every generator, in this order
FIRST_SEED = {"eval": 0, "train": 1_000, "warmup": 100_000}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    held_out: set[str] = set()
    for split in EACH:
        rows = [list(drawn(name, split, held_out)) for name in GENERATORS]
        by_turns = [one for several in zip(*rows, strict=True) for one in several]
        if split == "eval":
            held_out = {question for *_, question, _ in by_turns}
        write(folder / f"{split}.jsonl", warmup(by_turns) if split == "warmup" else [task(split, *o) for o in by_turns])


def drawn(name: str, split: str, without: set[str]) -> Iterator[tuple[str, int, list[dict[str, Any]], str, str]]:
    """(generator, seed, messages, question, answer) of distinct questions."""
    seed, asked = FIRST_SEED[split], set(without)
    while len(asked) < len(without) + EACH[split]:
        world = ReasoningGymEnvironment(name)
        with OwnRandom(seed).drawn():
            messages = [dict(message) for message in world.start(seed, {"config": GENERATORS[name]}).messages]
        question = messages[-1]["content"]
        if question not in asked:
            asked.add(question)
            yield name, seed, messages, question, world.answer
        seed += 1


def task(split: str, name: str, seed: int, *_: object) -> dict[str, Any]:
    metadata = {"environment": name, "index": seed, "custom_task": {"config": GENERATORS[name]}}
    label = f"{split}-{name}-{seed}"
    return {"id": label, "query": label, "source": name, "sampler": "environment", "metadata": metadata}


def warmup(rows: list[tuple[str, int, list[dict[str, Any]], str, str]]) -> list[dict[str, Any]]:
    lines = []
    for number, (*_, messages, _, answer) in enumerate(rows):
        other = rows[(number + len(GENERATORS)) % len(rows)][-1]  # of the same generator
        said = answer if number // len(GENERATORS) % 2 else other
        reply = {"role": "assistant", "content": f"<answer>{said}</answer>"}
        lines.append({"messages": [*messages, reply], "tools": []})
    random.Random(1).shuffle(lines)
    return lines


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
