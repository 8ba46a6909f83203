"""The sampler: claims slots, plays tool-calling episodes, scores them and settles groups. Needs no torch.

`__all__` is what a sampler of your own imports; docs/reference/api.md has an example. It is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from shared.lazy_names import lazy_names

if TYPE_CHECKING:
    from sampler.actors.actor_sampler import ActorSampler, SeatTurn
    from sampler.actors.parallel_sampler import ParallelSampler
    from sampler.actors.rounds_sampler import RoundsSampler
    from sampler.core.episode.sampler import AsyncSampler, Turn
    from sampler.core.episode.scoring import ScoreComesLater
    from sampler.core.errors import AgentFailed, EngineError, ScorerFailed, ToolFailure
    from sampler.core.kinds.mcp_sampler import MCPSampler
    from sampler.core.kinds.ported import ChatPort, PortedSampler
    from sampler.core.scorers.registry import Score
    from sampler.environments.sampler import EnvironmentSampler
    from shared.documents.states import Termination

__all__ = [
    "ActorSampler",
    "AgentFailed",
    "AsyncSampler",
    "ChatPort",
    "EngineError",
    "EnvironmentSampler",
    "MCPSampler",
    "ParallelSampler",
    "PortedSampler",
    "RoundsSampler",
    "Score",
    "ScoreComesLater",
    "ScorerFailed",
    "SeatTurn",
    "Termination",
    "ToolFailure",
    "Turn",
]
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("AgentFailed", "EngineError", "ScorerFailed", "ToolFailure"), "sampler.core.errors"),
        **dict.fromkeys(("AsyncSampler", "Turn"), "sampler.core.episode.sampler"),
        **dict.fromkeys(("ChatPort", "PortedSampler"), "sampler.core.kinds.ported"),
        **dict.fromkeys(("ActorSampler", "SeatTurn"), "sampler.actors.actor_sampler"),
        "ParallelSampler": "sampler.actors.parallel_sampler",
        "RoundsSampler": "sampler.actors.rounds_sampler",
        "EnvironmentSampler": "sampler.environments.sampler",
        "MCPSampler": "sampler.core.kinds.mcp_sampler",
        "Score": "sampler.core.scorers.registry",
        "ScoreComesLater": "sampler.core.episode.scoring",
        "Termination": "shared.documents.states",
    },
)
