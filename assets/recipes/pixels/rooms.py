"""Rooms of BabyAI, in numbers: where the player and the object are, what a move does, and which move leads nearer.

A room is empty but for the object. The player has arrived when the object is in the field ahead.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

Field = tuple[int, int]  # column and row, from 1 on: 0 is the wall
LEFT, RIGHT, AHEAD = MOVES = range(3)  # by the number of MiniGrid's action; the first two turn
SIDE = 4  # fields inside of the walls
AHEAD_OF = ((1, 0), (0, 1), (-1, 0), (0, -1))  # by the player's direction


@dataclass(frozen=True, slots=True)
class Room:
    player: Field
    direction: int
    target: Field
    kind: str = ""  # color and type of the target

    @property
    def ahead(self) -> Field:
        column, row = AHEAD_OF[self.direction]
        return self.player[0] + column, self.player[1] + row

    @property
    def arrived(self) -> bool:
        return self.ahead == self.target

    def moved(self, move: int) -> "Room":
        if move != AHEAD:
            return replace(self, direction=(self.direction + (1 if move == RIGHT else -1)) % 4)
        is_free = self.ahead != self.target and all(1 <= at <= SIDE for at in self.ahead)
        return replace(self, player=self.ahead) if is_free else self

    def view(self) -> tuple[Field, Field, str]:
        """Relative to the player and its direction: free fields ahead and to the right, and the target's place."""
        column, row = self.player
        free = {0: SIDE - column, 1: SIDE - row, 2: column - 1, 3: row - 1}
        right = (self.direction + 1) % 4
        away = self.target[0] - column, self.target[1] - row
        place = [sum(a * b for a, b in zip(away, AHEAD_OF[to], strict=True)) for to in (self.direction, right)]
        return (free[self.direction], free[right]), (place[0], place[1]), self.kind

    def moves_nearer(self) -> list[int]:
        distance = _distances(self.target)
        here = distance[self.player, self.direction]
        after = {move: self.moved(move) for move in MOVES}
        return [move for move, room in after.items() if distance[room.player, room.direction] < here]

    def distance(self) -> int:
        """Moves of a shortest way."""
        return _distances(self.target)[self.player, self.direction]


@cache
def _distances(target: Field) -> dict[tuple[Field, int], int]:
    """By the player's field and direction."""
    fields = [(column, row) for column in range(1, SIDE + 1) for row in range(1, SIDE + 1) if (column, row) != target]
    rooms = [Room(field, direction, target) for field in fields for direction in range(4)]
    distance = {(room.player, room.direction): 0 for room in rooms if room.arrived}
    while len(distance) < len(rooms):
        for room in rooms:
            after = [distance.get((to.player, to.direction)) for to in map(room.moved, MOVES)]
            known = [moves + 1 for moves in after if moves is not None]
            if known and min(known) < distance.get((room.player, room.direction), len(rooms)):
                distance[room.player, room.direction] = min(known)
    return distance


def room_of(world: Any) -> Room:
    """Of a world of MiniGrid that has been reset."""
    (target,) = world.instrs.desc.obj_poss
    thing = world.grid.get(*target)
    (column, row), kind = world.agent_pos, f"{thing.color} {thing.type}"
    return Room((int(column), int(row)), int(world.agent_dir), (int(target[0]), int(target[1])), kind)
