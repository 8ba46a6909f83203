"""Tasks of the recipe: a room of BabyAI, seen as pixels from the player's place, who walks to the one object in it.

python -m assets.recipes.pixels.make FOLDER     in a Python that has minigrid: writes train.jsonl, eval.jsonl and warmup.jsonl

No room of the evaluation, as its player has it ahead, is one of training, or is passed in the warm-up. In the warm-up a share of
RANDOM of the moves is drawn at random.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assets.jsonl import write
from assets.recipes.pixels.rooms import MOVES, Room, room_of
from sampler.environments.adapters.gymnasium import GymnasiumEnvironment
from sampler.environments.environment import RUNNING

WORLD = "minigrid:BabyAI-GoToObjS6-v1"
NUM_EVAL, NUM_TRAIN, NUM_WALKS = 128, 640, 3_000
NEAREST, FARTHEST = 2, 5  # moves of a shortest way
MAX_MOVES = 6
RANDOM = 0.4
NAMES_OF_MOVES = ["left", "right", "up", "pickup", "drop", "toggle", "done"]  # up: ahead, as the picture has it
TASK = {
    "options": {"agent_pov": True, "tile_size": 16},
    "show": "render",
    "longest_edge": 112,
    "actions": NAMES_OF_MOVES,
    "instruction": "Walk.",
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(3)
    rooms = Rooms()
    held_out = rooms.draw(NUM_EVAL)
    held_out_views = set(rooms.views)
    splits = {"eval": held_out, "train": rooms.draw(NUM_TRAIN)}
    for name, of_split in splits.items():
        write(folder / f"{name}.jsonl", [task(f"{name}-{seed}", seed) for seed in of_split])
    write(folder / "warmup.jsonl", warmup(rooms, held_out_views, rng))


class Rooms:
    """Rooms by their seeds, from 0 on."""

    def __init__(self) -> None:
        import gymnasium  # which only the worlds' Python has

        self._world: Any = gymnasium.make(WORLD, **TASK["options"]).unwrapped  # type: ignore[arg-type]  # options of a JSON object, which Gymnasium's stubs do not know
        self._seed = 0
        self.views: set[Any] = set()  # of all that were drawn

    def draw(self, count: int) -> list[int]:
        """Seeds of rooms with different views."""
        seeds: list[int] = []
        while len(seeds) < count:
            seed, room = self.next()
            if room.view() not in self.views:
                self.views.add(room.view())
                seeds.append(seed)
        return seeds

    def next(self) -> tuple[int, Room]:
        while True:
            self._seed += 1
            room = self.of(self._seed)
            if NEAREST <= room.distance() <= FARTHEST:
                return self._seed, room

    def of(self, seed: int) -> Room:
        self._world.reset(seed=seed)
        return room_of(self._world)


def task(name: str, seed: int) -> dict[str, Any]:
    metadata = {"environment": "room", "index": seed, "custom_task": TASK}
    return {"id": name, "query": name, "source": "pixels", "sampler": "environment", "metadata": metadata}


def warmup(rooms: Rooms, held_out: set[Any], rng: random.Random) -> Iterator[dict[str, Any]]:
    count = 0
    while count < NUM_WALKS:
        seed, room = rooms.next()
        moves = drawn_moves(room, held_out, rng)
        if moves:
            count += 1
            yield {"messages": walk(seed, moves)}


def drawn_moves(room: Room, held_out: set[Any], rng: random.Random) -> list[int]:
    """Until the player arrives; none where a room of the evaluation is passed."""
    moves: list[int] = []
    while not room.arrived and len(moves) < MAX_MOVES:
        if room.view() in held_out:
            return []
        moves.append(rng.choice(MOVES if rng.random() < RANDOM else room.moves_nearer()))
        room = room.moved(moves[-1])
    return moves


def walk(seed: int, moves: list[int]) -> list[dict[str, Any]]:
    """A conversation, up to the last move."""
    world, messages = GymnasiumEnvironment(WORLD), []
    step = world.start(seed, TASK)
    for move in moves:
        assert step.status == RUNNING, f"the room of seed {seed} has ended before its walk"
        blocks = [
            {"type": "text", "text": part} if isinstance(part, str) else part for part in step.messages[0]["content"]
        ]
        messages += [{"role": "user", "content": blocks}, {"role": "assistant", "content": NAMES_OF_MOVES[move]}]
        step = world.interact(messages[-1:])
    world.close()
    return messages


if __name__ == "__main__":
    main()
