"""Names by which tasks choose their sampler (`TaskPayload.sampler`), and what tasks may ask of each.

The classes are in the sampler (`sampler/core/service/kinds.py`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplerTraits:
    """`scores_itself`: it may ignore the task's scorer. `uses_tools`: it needs tool servers for tasks that name tools."""

    scores_itself: bool
    uses_tools: bool


EXTERNAL = "external"  # played by gateways (`python -m sampler.gateway`), for agents elsewhere
BUNDLED = {
    "agent": SamplerTraits(scores_itself=True, uses_tools=False),
    "environment": SamplerTraits(scores_itself=True, uses_tools=False),
    EXTERNAL: SamplerTraits(scores_itself=True, uses_tools=False),
    "game": SamplerTraits(scores_itself=True, uses_tools=False),
    "mcp": SamplerTraits(scores_itself=False, uses_tools=True),
    "parallel": SamplerTraits(scores_itself=False, uses_tools=False),
    "rounds": SamplerTraits(scores_itself=False, uses_tools=False),
}
