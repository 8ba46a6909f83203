"""Turns a completed group into training data. Guide: docs/train/groups.md.

`__all__` is what an advantage estimator of your own imports; docs/reference/api.md has an example.
"""

from typing import TYPE_CHECKING

from shared.lazy_names import lazy_names

if TYPE_CHECKING:
    from sampler.core.settings.groups import GroupConfig
    from sampler.core.settlement.groups import ScoredEpisode, ScoredTurn
    from sampler.core.settlement.registry import register_advantage

__all__ = ["GroupConfig", "ScoredEpisode", "ScoredTurn", "register_advantage"]
__getattr__ = lazy_names(
    __name__,
    {
        "GroupConfig": "sampler.core.settings.groups",
        "ScoredEpisode": "sampler.core.settlement.groups",
        "ScoredTurn": "sampler.core.settlement.groups",
        "register_advantage": "sampler.core.settlement.registry",
    },
)
