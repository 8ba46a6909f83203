"""Scorers by name: a task names its scorer, which turns an answer into a number. Guide: `docs/bring/scorers.md`.

    @register_scorer("close_enough")
    async def close_enough(request: ScoringRequest) -> Score: ...

    score = await score_answer("close_enough", request, timeout_s=60)

registry     names and calls of scorers                      text          exact_match, includes, f1
factory      scorers with AgentRL's signature                 mathematics   math
judged       judge_score, judge_rubric
llm_judge    agentcpm                                         structured    json_schema
details      details stored with a score                    relative      judge_rank, judge_pairs, diversity
"""

from sampler.core.scorers import judged, llm_judge, mathematics, relative, structured, text
from sampler.core.scorers.factory import MCPScorerFactory
from sampler.core.scorers.registry import (
    GroupEpisode,
    GroupRequest,
    Score,
    Scorer,
    ScoringRequest,
    default_scorer,
    import_scorers,
    is_finite_number,
    register_group_scorer,
    register_scorer,
    require_scorer,
    score_answer,
    scorer_names,
    scorer_needs_answer,
)

__all__ = [
    "GroupEpisode",
    "GroupRequest",
    "MCPScorerFactory",
    "Score",
    "Scorer",
    "ScoringRequest",
    "default_scorer",
    "import_scorers",
    "is_finite_number",
    "judged",
    "llm_judge",
    "mathematics",
    "register_group_scorer",
    "register_scorer",
    "relative",
    "require_scorer",
    "score_answer",
    "scorer_names",
    "scorer_needs_answer",
    "structured",
    "text",
]
