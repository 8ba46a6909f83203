"""Helper agents of the sampler: language models that summarize long tool results and judge answers. None of them is trained.

config (the YAML file) ─▶ browse  ┐
                       └▶ judge   ┴─▶ pool (failover, retries) ─▶ breaker, endpoint (one request)
                            └─▶ verdict

Promise: who answered, what failed before and how long it took is part of every answer, and goes into the documents; when
no model answered that is `AgentFailed`, an infrastructure failure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sampler.agents.browse import BrowseAgent
from sampler.agents.config import read_agents_config
from sampler.agents.judge import Judge
from sampler.tools.results import OffsetsOf
from shared.errors import ConfigError

__all__ = ["Agents", "BrowseAgent", "Judge"]


@dataclass(frozen=True)
class Agents:
    """Those of one process; None where the file configures none."""

    browse: BrowseAgent | None = None
    judge: Judge | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the file, without keys: what may be stored

    @classmethod
    def from_file(cls, path: Path | None, offsets: OffsetsOf) -> Self:
        """Those that the file configures; None of both without a file. Raises ConfigError."""
        if path is None:
            return cls()
        config = read_agents_config(path)
        return cls(
            BrowseAgent(config.browse_agent, offsets) if config.browse_agent else None,
            Judge(config.scorer_agent) if config.scorer_agent else None,
            config.snapshot(),
        )

    def require(self, context_summary: str) -> None:
        """Raises ConfigError where summaries of contexts are to be written by a browse agent that is not configured."""
        if context_summary == "browse_agent" and self.browse is None:
            raise ConfigError("context_summary is browse_agent; expected one in the file that agent_config_path names")

    async def close(self) -> None:
        for agent in (self.browse, self.judge):
            if agent is not None:
                await agent.close()
