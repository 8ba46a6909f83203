"""Warm start: conversations of walkers who do not know the way: `python -m assets.gridworld.demonstrations OUT.jsonl`.

Every move is drawn blindly, so a model that is fine-tuned on them knows what a reply looks like (one letter) and nothing about
where to go. That is left for reinforcement learning.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from assets.gridworld.make_tasks import SIZE, walks
from assets.gridworld.world import STEPS, GridTask, Walker

COUNT = 1_000
TURNS = 4


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random("demonstrations")
    with path.open("w", encoding="utf-8") as file:
        for start, goal in rng.choices(walks(rng), k=COUNT):
            walker = Walker(GridTask(size=SIZE, start=start, goal=goal), start)
            file.write(json.dumps({"messages": blind_walk(walker, rng), "tools": []}) + "\n")


def blind_walk(walker: Walker, rng: random.Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for _ in range(TURNS):
        if walker.distance == 0:
            break
        letter = rng.choice(list(STEPS))
        messages += [{"role": "user", "content": walker.look()}, {"role": "assistant", "content": letter}]
        walker.walk(letter)
    return messages


if __name__ == "__main__":
    main()
