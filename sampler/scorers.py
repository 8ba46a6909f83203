"""Scorers by name: what a module of your own imports. Guide: `docs/bring/scorers.md`; the code: `sampler/core/scorers/`,
`sampler/bundled_scorers/`."""

from sampler.bundled_scorers.tenant import judged, llm_judge, mathematics, relative, structured, text
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
