"""Warm start: conversations of guides and walkers who know nothing: `python -m assets.guided_walk.demonstrations OUT.jsonl`.

Every letter is drawn blindly, so a model that is fine-tuned on them knows what either is asked and what a reply looks like, and
nothing about where to go. That is left for reinforcement learning. Both policies start from this one model.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from assets.gridworld.demonstrations import TURNS, blind_walk
from assets.gridworld.make_tasks import SIZE, walks
from assets.gridworld.world import STEPS, GridTask, Walker
from assets.guided_walk.sampler import heard

COUNT = 500  # of each


def main() -> None:
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random("demonstrations")
    with path.open("w", encoding="utf-8") as file:
        for start, goal in rng.choices(walks(rng), k=COUNT):
            guide = blind_walk(Walker(GridTask(size=SIZE, start=start, goal=goal), start), rng)
            for messages in (guide, blind_follower(rng)):
                file.write(json.dumps({"messages": messages, "tools": []}) + "\n")


def blind_follower(rng: random.Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for _ in range(TURNS):
        hint, letter = rng.choices(list(STEPS), k=2)
        messages += [{"role": "user", "content": heard(hint)}, {"role": "assistant", "content": letter}]
    return messages


if __name__ == "__main__":
    main()
