"""Helper agents of the sampler: language models that summarize long tool results, judge answers, or take seats in episodes. They
are not trained.

config (the YAML file) ─▶ browse  ┐
                       ├▶ player  │
                       └▶ judge   ┴─▶ pool (failover, retries) ─▶ breaker, endpoint (one request)
                            └─▶ verdict

Promise: every answer includes its model, earlier failures and its duration, and these are stored. If no model answers, that is
`AgentFailed`, an infrastructure failure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sampler.core.api_models.browse import BrowseAgent
from sampler.core.api_models.config import read_agents_config
from sampler.core.api_models.images import ReadImage
from sampler.core.api_models.judge import Judge
from sampler.core.api_models.player import Player
from sampler.core.tools.results import OffsetsOf
from shared.errors import ConfigError

__all__ = ["Agents", "BrowseAgent", "Judge", "Player"]


@dataclass(frozen=True)
class Agents:
    """The agents of one process; None: not configured."""

    browse: BrowseAgent | None = None
    judge: Judge | None = None
    players: Mapping[str, Player] = field(default_factory=dict)  # by name
    settings: Mapping[str, Any] = field(default_factory=dict)  # the file's settings without keys: safe to store

    @classmethod
    def from_file(cls, path: Path | None, offsets: OffsetsOf, read_image: ReadImage | None = None) -> Self:
        """The agents that the file configures; both None without a file. `read_image`: files of images, by digest, for models
        that see. Raises ConfigError."""
        if path is None:
            return cls()
        config = read_agents_config(path)
        return cls(
            BrowseAgent(config.browse_agent, offsets) if config.browse_agent else None,
            Judge(config.scorer_agent, read_image) if config.scorer_agent else None,
            {name: Player(name, player, read_image) for name, player in config.players.items()},
            config.snapshot(),
        )

    def require(self, context_summary: str) -> None:
        """Raises ConfigError if a browse agent shall summarize contexts but is not configured."""
        if context_summary == "browse_agent" and self.browse is None:
            raise ConfigError(
                "context_summary is browse_agent; expected a browse_agent in the file that agent_config_path names"
            )

    def player(self, name: str) -> Player:
        """Raises ConfigError for a model that the file does not name."""
        if name not in self.players:
            known = ", ".join(self.players) or "none"
            raise ConfigError(
                f"an actor's model is {name!r}; expected one of players in the file that agent_config_path names: {known}"
            )
        return self.players[name]

    async def close(self) -> None:
        for agent in (self.browse, self.judge, *self.players.values()):
            if agent is not None:
                await agent.close()
