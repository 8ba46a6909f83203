"""Tasks of Gymnasium's frozen lake, and warm-start conversations of unsteady walkers.

python -m assets.frozen_lake.make FOLDER        in a Python that has gymnasium; writes train, eval and demonstrations.jsonl

About one move of three leads nearer to the goal on purpose, the others are random: 13 % of the walks arrive. A model tuned on
them knows what a reply looks like. Reinforcement learning teaches the rest. The lake is the same 4 × 4 map in all tasks.
"""

import random
import sys
from collections import deque
from pathlib import Path
from typing import Any

from assets.jsonl import write
from sampler.environments.adapters.gymnasium import NAMES, GymnasiumEnvironment
from sampler.environments.environment import RUNNING

LAKE = "FrozenLake-v1"
CUSTOM = {"options": {"is_slippery": False}}
MAP = ("SFFF", "FHFH", "FFFH", "HFFG")  # Gymnasium's 4x4
GOAL = 15
ACTIONS = NAMES["FrozenLake"]
WALKS, TURNS, KNOWING = 800, 10, 0.35
TASKS = {"train": 400, "eval": 40}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in TASKS.items():
        write(folder / f"{split}.jsonl", [task(f"{split}{k}", k) for k in range(count)])
    rng, nearer = random.Random(1), moves_nearer()
    write(folder / "demonstrations.jsonl", [{"messages": walk(rng, nearer), "tools": []} for _ in range(WALKS)])


def task(name: str, index: int) -> dict[str, Any]:
    metadata = {"environment": "lake", "index": index, "custom_task": CUSTOM}
    return {"id": name, "query": f"lake {index}", "source": "lake", "sampler": "environment", "metadata": metadata}


def moved(at: int, action: int) -> int:
    row, column = divmod(at, 4)
    row += {"down": 1, "up": -1}.get(ACTIONS[action], 0)
    column += {"right": 1, "left": -1}.get(ACTIONS[action], 0)
    return min(3, max(0, row)) * 4 + min(3, max(0, column))


def moves_nearer() -> dict[int, list[int]]:
    """By field: the actions of a shortest way."""
    distance, queue = {GOAL: 0}, deque([GOAL])
    while queue:
        reached = queue.popleft()
        for at in range(16):
            if MAP[at // 4][at % 4] in "SF" and at not in distance and any(moved(at, a) == reached for a in range(4)):
                distance[at] = distance[reached] + 1
                queue.append(at)
    return {at: [a for a in range(4) if distance.get(moved(at, a), 99) < near] for at, near in distance.items()}


def walk(rng: random.Random, nearer: dict[int, list[int]]) -> list[dict[str, Any]]:
    lake, at, messages = GymnasiumEnvironment(LAKE), 0, []
    step = lake.start(1, CUSTOM)
    for _ in range(TURNS):
        action = rng.choice(nearer[at]) if rng.random() < KNOWING else rng.randrange(4)
        messages += [dict(step.messages[0]), {"role": "assistant", "content": ACTIONS[action]}]
        step, at = lake.interact(messages[-1:]), moved(at, action)
        if step.status != RUNNING:
            break
    lake.close()
    return messages


if __name__ == "__main__":
    main()
