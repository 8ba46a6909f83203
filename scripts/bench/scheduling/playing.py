"""What is played in a simulation: an episode in a slot, and the groups that the gate has admitted."""

from collections import Counter
from dataclasses import dataclass, field

from scripts.bench.scheduling.engine import Request, SimulatedEngine
from scripts.bench.scheduling.workload import SimulatedEpisode, SimulatedGroup


@dataclass(eq=False, slots=True)
class Play:
    """One slot: its episode, and where it is in it."""

    seq: int
    episode: SimulatedEpisode
    began: float
    turn: int = 0
    engine: SimulatedEngine | None = None
    seen_update: int = -1  # of `engine`, at the last turn
    request: Request | None = None
    versions: Counter[int] = field(default_factory=Counter)
    cancelled: bool = False


@dataclass(eq=False, slots=True)
class OpenGroup:
    seq: int
    group: SimulatedGroup
    slots: list[SimulatedEpisode]  # not claimed yet, in order
    playing: list[Play] = field(default_factory=list)
    ended: list[Play] = field(default_factory=list)
