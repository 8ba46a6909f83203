"""Tasks of the recipe: Gymnasium's Blackjack.

python -m assets.recipes.blackjack.make FOLDER      in a Python that has gymnasium: writes train, eval and warmup.jsonl

A task is a seed, and so its cards. The warm-up is of players who hit and stick at random: it teaches how a move is written, and
nothing of the game. No seed of the evaluation occurs in training or in the warm-up.
"""

import random
import sys
from pathlib import Path
from typing import Any

from assets.jsonl import write
from sampler.environments.adapters.gymnasium import NAMES, GymnasiumEnvironment
from sampler.environments.environment import RUNNING

GAME = "Blackjack-v1"
EACH = {"eval": 128, "train": 480, "warmup": 64}
FIRST_SEED = {"eval": 0, "train": 1_000, "warmup": 100_000}
ACTIONS = NAMES["Blackjack"]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("eval", "train"):
        write(folder / f"{split}.jsonl", [task(split, seed) for seed in seeds(split)])
    rng = random.Random(1)
    write(folder / "warmup.jsonl", [{"messages": hand(rng, seed), "tools": []} for seed in seeds("warmup")])


def seeds(split: str) -> range:
    return range(FIRST_SEED[split], FIRST_SEED[split] + EACH[split])


def task(split: str, seed: int) -> dict[str, Any]:
    name = f"{split}-{seed}"
    metadata = {"environment": "blackjack", "index": seed}
    return {"id": name, "query": name, "source": "blackjack", "sampler": "environment", "metadata": metadata}


def hand(rng: random.Random, seed: int) -> list[dict[str, Any]]:
    """A conversation, up to the last move."""
    game, messages = GymnasiumEnvironment(GAME), []
    step = game.start(seed, {})
    while step.status == RUNNING:
        messages += [dict(step.messages[0]), {"role": "assistant", "content": rng.choice(ACTIONS)}]
        step = game.interact(messages[-1:])
    game.close()
    return messages


if __name__ == "__main__":
    main()
