"""Warm-start conversations of weak guides and walkers: `python -m assets.guided_walk.demonstrations OUT.jsonl`.

As in `assets/gridworld/demonstrations.py`, two letters of five are right, the others are random. A guide's letter is right if
it leads nearer to the goal, a walker's if it follows the guide. Both policies start from one model fine-tuned on them.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from assets.gridworld.demonstrations import KNOWING, TURNS, unsteady_walk
from assets.gridworld.make_tasks import SIZE, walks
from assets.gridworld.world import STEPS, GridTask, Walker
from assets.guided_walk.sampler import heard

COUNT = 1_000  # of each


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random("demonstrations")
    with path.open("w", encoding="utf-8") as file:
        for start, goal in rng.choices(walks(rng), k=COUNT):
            guide = unsteady_walk(Walker(GridTask(size=SIZE, start=start, goal=goal), start), rng)
            for messages in (guide, unsteady_follower(rng)):
                file.write(json.dumps({"messages": messages, "tools": []}) + "\n")


def unsteady_follower(rng: random.Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for _ in range(TURNS):
        hint = rng.choice(list(STEPS))
        letter = hint if rng.random() < KNOWING else rng.choice(list(STEPS))
        messages += [{"role": "user", "content": heard(hint)}, {"role": "assistant", "content": letter}]
    return messages


if __name__ == "__main__":
    main()
