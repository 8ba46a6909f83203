"""A custom scorer, used by `--sampler tests.system.near:Player`."""

from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.scorers import Score, ScoringRequest, register_scorer


@register_scorer("tests_near")
async def near(request: ScoringRequest) -> Score:
    """1 for the right color, a half for a word with the right first letter."""
    answer, wanted = request.answer or "", request.accepted[0]
    return Score(1.0 if answer == wanted else 0.5 * (answer[:1] == wanted[:1]))


class Player(MCPSampler):
    """The standard one."""
