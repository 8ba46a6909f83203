"""The learning rate as a pure function of the step, so that a resume needs nothing but the step number."""

import math

from trainer.settings.optimizer import Schedule


def learning_rate(
    step: int, *, peak: float, schedule: Schedule, warmup_steps: int, max_steps: int, floor_ratio: float
) -> float:
    """The rate of update number `step` (0 is the first).

    It climbs linearly over `warmup_steps` (the first update already moves), then stays (constant) or falls to
    `peak * floor_ratio` at `max_steps` (linear, cosine) and stays there.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    remaining = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (floor_ratio + (1 - floor_ratio) * remaining)
