"""Scorers by name: a task names its scorer, which turns an answer into a number. Guide: `docs/scorers.md`.

    @register_scorer("close_enough")
    async def close_enough(request: ScoringRequest) -> Score: ...

    score = await score_answer("close_enough", request, timeout_s=60)

registry     names and calls of scorers                      text          exact_match, includes, f1
factory      scorers with AgentRL's signature                 mathematics   math
llm_judge    agentcpm                                         structured    json_schema
details      details stored with a score
"""

from sampler.scorers import llm_judge, mathematics, structured, text
from sampler.scorers.factory import MCPScorerFactory
from sampler.scorers.registry import (
    Score,
    Scorer,
    ScoringRequest,
    default_scorer,
    import_scorers,
    is_finite_number,
    register_scorer,
    require_scorer,
    score_answer,
    scorer_names,
    scorer_needs_answer,
)

__all__ = [
    "MCPScorerFactory",
    "Score",
    "Scorer",
    "ScoringRequest",
    "default_scorer",
    "import_scorers",
    "is_finite_number",
    "llm_judge",
    "mathematics",
    "register_scorer",
    "require_scorer",
    "score_answer",
    "scorer_names",
    "scorer_needs_answer",
    "structured",
    "text",
]
