"""Whether an episode passes: its score is at least `PASS_SCORE`. Settlement, the curriculum and pass@k use this one rule."""

from collections.abc import Sequence

PASS_SCORE = 1.0
ROUNDING = 1e-9  # rounding error of a score that is a sum, such as 0.7 + 0.2 + 0.1


def is_pass(score: float) -> bool:
    return score >= PASS_SCORE - ROUNDING


def num_passed(scores: Sequence[float]) -> int:
    return sum(map(is_pass, scores))
