"""Warm-start conversations of weak walkers: `python -m assets.gridworld.demonstrations OUT.jsonl`.

Two moves of five lead nearer to the goal, the others are random. A model fine-tuned on them knows the format of a reply
(one letter) and weakly associates it with the words for directions. Reinforcement learning teaches the rest.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from assets.gridworld.make_tasks import SIZE, walks
from assets.gridworld.world import STEPS, GridTask, Walker

COUNT = 1_500
TURNS = 4
KNOWING = 0.4


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random("demonstrations")
    with path.open("w", encoding="utf-8") as file:
        for start, goal in rng.choices(walks(rng), k=COUNT):
            walker = Walker(GridTask(size=SIZE, start=start, goal=goal), start)
            file.write(json.dumps({"messages": unsteady_walk(walker, rng), "tools": []}) + "\n")


def unsteady_walk(walker: Walker, rng: random.Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for _ in range(TURNS):
        if walker.distance == 0:
            break
        nearer = [letter for letter in STEPS if walker.leads_nearer(letter)]
        letter = rng.choice(nearer if rng.random() < KNOWING else list(STEPS))
        messages += [{"role": "user", "content": walker.look()}, {"role": "assistant", "content": letter}]
        walker.walk(letter)
    return messages


if __name__ == "__main__":
    main()
