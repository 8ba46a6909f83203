"""The grid world: a square grid, a walker, a goal. Independent of models, samplers and databases.

    . . . G      "goal: 3 east, 1 north"      the observation
    @ . . .      "e"                          the reply: its first letter among n, e, s, w counts

Promise: deterministic moves; a move into the border and a reply without a letter change nothing.
"""

from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field, model_validator

Place = tuple[int, int]  # (steps to the east, steps to the north) from the south-west corner
STEPS: dict[str, Place] = {"n": (0, 1), "e": (1, 0), "s": (0, -1), "w": (-1, 0)}


class GridTask(BaseModel):
    """The task's `metadata`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=2, le=50)
    start: Place
    goal: Place

    @model_validator(mode="after")
    def start_and_goal_are_two_places_in_the_grid(self) -> "GridTask":
        for name, place in (("start", self.start), ("goal", self.goal)):
            if not all(0 <= x < self.size for x in place):
                raise ValueError(f"{name} {place} is outside a grid of {self.size} by {self.size}")
        if self.start == self.goal:
            raise ValueError(f"start and goal are both {self.start}; expected different places")
        return self


@dataclass(slots=True)
class Walker:
    """The state of one walk."""

    task: GridTask
    place: Place

    @property
    def distance(self) -> int:
        """Steps to the goal."""
        return abs(self.task.goal[0] - self.place[0]) + abs(self.task.goal[1] - self.place[1])

    def look(self) -> str:
        east, north = self.task.goal[0] - self.place[0], self.task.goal[1] - self.place[1]
        parts = [(abs(east), "east" if east > 0 else "west"), (abs(north), "north" if north > 0 else "south")]
        return "goal: " + ", ".join(f"{n} {where}" for n, where in parts if n)

    def walk(self, reply: str) -> bool:
        """Take the step named by `reply`. Returns False if it names none, or one through the border."""
        letter = letter_of(reply)
        if letter is None:
            return False
        east, north = self.place[0] + STEPS[letter][0], self.place[1] + STEPS[letter][1]
        if not (0 <= east < self.task.size and 0 <= north < self.task.size):
            return False
        self.place = (east, north)
        return True

    def leads_nearer(self, reply: str) -> bool:
        """Would it?"""
        imagined = replace(self)
        return imagined.walk(reply) and imagined.distance < self.distance


def letter_of(reply: str) -> str | None:
    """The direction named by a reply, or None."""
    return next((c for c in reply.lower() if c in STEPS), None)
