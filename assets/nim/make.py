"""Tasks of TextArena's Nim against older versions of oneself, and warm-start games of players who know the rules and no more.

python -m assets.nim.make FOLDER        in a Python that has textarena; writes train, eval and demonstrations.jsonl

Three piles of one to four. Who takes the last object wins; each player moves at random in the demonstrations. The learner sits
on either side, against the versions of `RIVALS` one after the other. The evaluation begins from piles that no training game
begins from (but both may pass through the same ones later), against version 0.
"""

import itertools
import random
import sys
from pathlib import Path
from typing import Any

from assets.jsonl import write
from sampler.environments.adapters.textarena import TextArenaEnvironment
from sampler.environments.environment import RUNNING

GAME = "Nim-v0"
PILES, HIGHEST = 3, 4
INSTRUCTION = "Nim: [pile number]. The last one wins."
SHOW = ["GAME_BOARD", "GAME_ADMIN"]
SEATS = ("First", "Second")
RIVALS = (0, 10, 20, 30)  # versions, in the order in which the learner meets them
TASKS_EACH = 100  # of each rival
HELD_OUT, GAMES = 12, 1500


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random("nim")
    piles = [list(piles) for piles in itertools.product(range(1, HIGHEST + 1), repeat=PILES)]
    rng.shuffle(piles)
    held_out, known = piles[:HELD_OUT], piles[HELD_OUT:]
    write(folder / "eval.jsonl", [task(f"eval{k}", piles, 0) for k, piles in enumerate(held_out)])
    train = [(rival, k, rng.choice(known)) for rival in RIVALS for k in range(TASKS_EACH)]
    write(folder / "train.jsonl", [task(f"against{rival}-{k}", piles, rival) for rival, k, piles in train])
    games = [game(rng.choice(known), rng) for _ in range(GAMES)]
    write(folder / "demonstrations.jsonl", [talk for talks in games for talk in talks])


def task(name: str, piles: list[int], rival: int) -> dict[str, Any]:
    past = f"At{rival}"
    return {
        "id": name,
        "query": f"Nim {piles}",
        "source": f"against_{rival}",
        "sampler": "game",
        "actors": {"Learner": {"policy": "main"}, past: {"policy": "main", "at": rival}},
        "lineups": [dict(zip(SEATS, players, strict=True)) for players in (("Learner", past), (past, "Learner"))],
        "metadata": {"environment": "nim", "custom_task": custom(piles)},
    }


def custom(piles: list[int]) -> dict[str, Any]:
    return {"players": 2, "options": {"piles": piles}, "instruction": INSTRUCTION, "show": SHOW}


def game(piles: list[int], rng: random.Random) -> list[dict[str, Any]]:
    """The conversations of both players."""
    world, left = TextArenaEnvironment(GAME), list(piles)
    talks: tuple[list[dict[str, Any]], ...] = ([], [])
    step = world.start(0, custom(piles))
    while step.status == RUNNING and step.seat is not None:
        pile = rng.choice([pile for pile, count in enumerate(left) if count])
        taken = rng.randint(1, left[pile])
        left[pile] -= taken
        reply = {"role": "assistant", "content": f"[{pile} {taken}]"}
        talks[step.seat].extend([dict(step.messages[0]), reply])
        step = world.interact([reply])
    world.close()
    return [{"messages": talk, "tools": []} for talk in talks if talk]


if __name__ == "__main__":
    main()
