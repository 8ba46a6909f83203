"""A workload: groups of episodes with the lengths of their turns, apart from when anything happens.

    Workload ─▶ SimulatedGroup (one task) ─▶ SimulatedEpisode (one slot) ─▶ SimulatedTurn (one request and the tools after it)

It is read from a recorded run (`recorded.py`) or sampled (`synthetic`). Times are seconds, lengths are tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """`prompt`: all of its tokens; `fresh`: those of them that a warm prefix cache lacks. `tool_s`: from the reply to the next
    request, or to the episode's end."""

    prompt: int
    fresh: int
    output: int
    tool_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedEpisode:
    """`start_s`: from the claim to the first request."""

    turns: tuple[SimulatedTurn, ...]
    start_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Sampled ones."""
        return sum(turn.output for turn in self.turns)


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """`usable`: its settlement yields training data. `spares`: further episodes, for more slots than the group has."""

    task: str
    source: str
    episodes: tuple[SimulatedEpisode, ...]
    usable: bool = True
    spares: tuple[SimulatedEpisode, ...] = ()

    def slots(self, extra: int) -> tuple[SimulatedEpisode, ...]:
        """The episodes with `extra` more slots; the spares are repeated where they are fewer."""
        pool = self.spares or self.episodes
        return (*self.episodes, *(pool[i % len(pool)] for i in range(extra)))


@dataclass(frozen=True, slots=True)
class Workload:
    """Groups in the order of their tasks. A replay that needs more of them begins again with the first."""

    groups: tuple[SimulatedGroup, ...]

    def group(self, seq: int) -> SimulatedGroup:
        return self.groups[seq % len(self.groups)]


@dataclass(frozen=True, slots=True)
class SimulatedTail:
    """The shape of a synthetic workload. The logarithm of a reply's length is normal: `source_sigma` between sources,
    `task_sigma` between the tasks of one, `episode_sigma` between the episodes of a group."""

    sources: int = 4
    turns: int = 4
    prompt: int = 512
    output: int = 256
    tool_s: float = 1.0
    source_sigma: float = 0.5
    task_sigma: float = 0.5
    episode_sigma: float = 0.7


def synthetic(groups: int, size: int, seed: int, tail: SimulatedTail | None = None) -> Workload:
    """So many groups of `size` episodes, with `size` spares each. Equal seeds give equal workloads."""
    shape = tail or SimulatedTail()
    rng = np.random.default_rng(seed)
    of_source = rng.normal(0.0, shape.source_sigma, shape.sources)
    made = []
    for seq in range(groups):
        source = int(rng.integers(shape.sources))
        level = of_source[source] + rng.normal(0.0, shape.task_sigma)
        episodes = [_episode(rng, shape, level + rng.normal(0.0, shape.episode_sigma)) for _ in range(2 * size)]
        made.append(
            SimulatedGroup(f"task {seq}", f"source {source}", tuple(episodes[:size]), spares=tuple(episodes[size:]))
        )
    return Workload(tuple(made))


def _episode(rng: np.random.Generator, shape: SimulatedTail, level: float) -> SimulatedEpisode:
    """Each turn's prompt continues the last one's reply; only what the tool added is fresh."""
    turns: list[SimulatedTurn] = []
    context, fresh = shape.prompt, shape.prompt
    for last in [False] * (shape.turns - 1) + [True]:
        output = max(1, round(shape.output * float(np.exp(level))))
        tool_s = 0.0 if last else shape.tool_s * float(rng.exponential())
        turns.append(SimulatedTurn(context, fresh, output, tool_s))
        fresh = shape.prompt // 4
        context += output + fresh
    return SimulatedEpisode(tuple(turns))


def sampled_tokens(episodes: Sequence[SimulatedEpisode]) -> int:
    return sum(episode.tokens for episode in episodes)
