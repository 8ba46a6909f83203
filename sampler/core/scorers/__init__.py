"""Scorers by name: a task names its scorer, which turns an answer into a number. Guide: `docs/bring/scorers.md`.

    @register_scorer("close_enough")
    async def close_enough(request: ScoringRequest) -> Score: ...

    score = await score_answer("close_enough", request, timeout_s=60)

registry     names and calls of scorers                      weighted      a score that is a sum of several
factory      scorers with AgentRL's signature                 answers       the answer in a reply, behind its reasoning
calling      threads, time limits and mistakes                batches       scorers that score many answers at once
details      details stored with a score                    scored_text   what a scorer reads

The scorers themselves are `sampler/bundled_scorers`, and modules of users.
"""

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
    "register_group_scorer",
    "register_scorer",
    "require_scorer",
    "score_answer",
    "scorer_names",
    "scorer_needs_answer",
]
