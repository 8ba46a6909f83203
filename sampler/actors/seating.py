"""Who takes which seat in a slot of a group, and who speaks when. A pure function of settings, task and slot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.documents import Claim, Task
from shared.documents.actors import Actor
from shared.errors import ConfigError
from shared.rules.actors import ActorsConfig
from shared.rules.rounds import WrongRounds, draw_rounds


@dataclass(frozen=True, slots=True)
class Seat:
    """`name`: of the seat, and of the thread of its turns. `actor`: the name of who takes it."""

    name: str
    actor: str
    takes: Actor

    @property
    def label(self) -> str:
        return self.takes.label


def seats_of(config: ActorsConfig, task: Task, traj_id: int) -> dict[str, Seat]:
    """By name, in the order in which settings and task list them. Raises ConfigError.

    The task's actors are added to the settings'; one of the same name wins. Without lineups each has a seat of its own.
    """
    actors: dict[str, Actor] = {**config.actors, **task.payload.actors}
    lineups: Sequence[Mapping[str, str]] = task.payload.lineups or config.lineups
    lineup = lineups[traj_id % len(lineups)] if lineups else {name: name for name in actors}
    unknown = [actor for actor in lineup.values() if actor not in actors]
    if unknown:
        known = ", ".join(actors) or "none"
        raise ConfigError(f"task {task.id}: a lineup seats {unknown[0]!r}; expected one of actors: {known}")
    if not lineup:
        raise ConfigError(f"task {task.id}: no actor takes part; set actors, of the sampler or of the task")
    return {seat: Seat(seat, actor, actors[actor]) for seat, actor in lineup.items()}


def order_of(config: ActorsConfig, claim: Claim, seats: Sequence[str]) -> list[str]:
    """The seats that speak, one for each turn; every attempt at the slot has the same. Raises ConfigError."""
    rounds = claim.task.payload.rounds or config.rounds
    if rounds is None:
        return list(seats)
    try:
        return draw_rounds(rounds, seats, key=f"{claim.task.id}:{claim.traj_id}")
    except WrongRounds as exc:
        raise ConfigError(f"task {claim.task.id}: {exc}") from exc
