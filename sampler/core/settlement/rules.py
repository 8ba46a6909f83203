"""The settlement rules select the episodes of a group to train on, and their rewards. Pure functions.

    has replies ─▶ min_turns ─▶ reserve_context_error_count ─▶ balance_sample ─▶ enough left? any variance? ─▶ efficient_rewarding

A rule does not see episodes that an earlier rule dropped. Random choices order episodes by the hash of the record's id, so that
every sampler that settles the group chooses the same ones, every time. A reason contains no episode id, so that `tandem
status` can count equal reasons.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from sampler.core.settings.groups import GroupConfig
from sampler.core.settlement.groups import ScoredEpisode


@dataclass(slots=True)
class RuleResult:
    """`kept` is in group order; `shaping` is added to each kept score; `dropped` is {record: reason}.

    `refusal`: the reason for dropping the whole group; then nothing is kept.
    """

    kept: list[ScoredEpisode]
    dropped: dict[str, str] = field(default_factory=dict)
    shaping: list[float] = field(default_factory=list)
    refusal: str | None = None

    @property
    def rewards(self) -> list[float]:
        return [e.score + added for e, added in zip(self.kept, self.shaping, strict=True)]

    def drop(self, episodes: Sequence[ScoredEpisode], reason: str) -> None:
        self.dropped |= {episode.record: reason for episode in episodes}
        self.kept = [episode for episode in self.kept if episode.record not in self.dropped]


def judge(episodes: Sequence[ScoredEpisode], num_generations: int, config: GroupConfig) -> RuleResult:
    """Apply every rule to the scored episodes of a group of planned size `num_generations`."""
    verdict = RuleResult(list(episodes))
    verdict.drop([e for e in episodes if not e.turns], "the model never replied")
    _drop_short_successes(verdict, config)
    _drop_over_long(verdict, config)
    _balance(verdict, config)
    verdict.refusal = _refusal(verdict, num_generations, config)
    if verdict.refusal is not None:
        verdict.drop(verdict.kept, verdict.refusal)
    verdict.shaping = _shaping(verdict.kept, config)
    return verdict


# ---------------------------------------------------------------------- episodes


def _drop_short_successes(verdict: RuleResult, config: GroupConfig) -> None:
    short = [e for e in verdict.kept if e.correct and e.num_turns < config.min_turns]
    verdict.drop(short, f"correct in fewer than {config.min_turns} turns")


def _drop_over_long(verdict: RuleResult, config: GroupConfig) -> None:
    if config.reserve_context_error_count is None:
        return
    over_long = by_lot([e for e in verdict.kept if e.over_long])
    verdict.drop(
        over_long[config.reserve_context_error_count :],
        f"over-long, beyond the {config.reserve_context_error_count} kept of a group",
    )


def _balance(verdict: RuleResult, config: GroupConfig) -> None:
    """A group that is all correct or all wrong is left to the zero-variance rule."""
    if not config.balance_sample:
        return
    correct = by_lot([e for e in verdict.kept if e.correct])
    wrong = by_lot([e for e in verdict.kept if not e.correct])
    n = min(len(correct), len(wrong))
    if n > 0:
        verdict.drop(correct[n:], "balance: more correct than wrong")
        verdict.drop(wrong[n:], "balance: more wrong than correct")


def by_lot(episodes: Sequence[ScoredEpisode]) -> list[ScoredEpisode]:
    """A random order that depends only on the record ids."""
    return sorted(episodes, key=lambda e: hashlib.sha256(e.record.encode()).hexdigest())


# ---------------------------------------------------------------------- the group


def _refusal(verdict: RuleResult, num_generations: int, config: GroupConfig) -> str | None:
    trainable, needed = verdict.kept, min(config.min_group_size, num_generations)
    if len(trainable) < needed:
        return f"{len(trainable)} of {num_generations} episodes can be trained on"
    if config.mask_overlong and all(e.over_long for e in trainable):
        return "every episode is over-long and masked"
    scores = [e.score for e in trainable]
    if config.zero_variance_tolerance is not None and max(scores) - min(scores) < config.zero_variance_tolerance:
        return f"zero variance: scores differ by less than {config.zero_variance_tolerance:g}"
    return None


def _shaping(trainable: Sequence[ScoredEpisode], config: GroupConfig) -> list[float]:
    added = {e.record: 0.0 for e in trainable}
    if config.efficient_rewarding:
        magnitude = config.efficient_rewarding_magnitude
        added |= rank_shaping([e for e in trainable if e.correct], -magnitude)
        added |= rank_shaping([e for e in trainable if not e.correct], magnitude)
    return [added[e.record] for e in trainable]


def rank_shaping(episodes: Sequence[ScoredEpisode], magnitude: float) -> dict[str, float]:
    """{record: reward change}: from −magnitude for the fewest turns to +magnitude for the most, by rank; the sum is 0.

    Episodes with equally many turns share their mean rank; a single episode gets 0. As in AgentCPM-Explore's AgentRL.
    """
    n = len(episodes)
    turns = [e.num_turns for e in episodes]
    below = [sum(other < mine for other in turns) for mine in turns]
    rank = [b + (turns.count(mine) - 1) / 2 for b, mine in zip(below, turns, strict=True)]
    return {e.record: magnitude * (2 * r / (n - 1) - 1) if n > 1 else 0.0 for e, r in zip(episodes, rank, strict=True)}
