"""Alarms: critical metrics of a step, each with advice. They change nothing; they are logged, written to
metrics.jsonl as `alarm/NAME` (1 or 0) and shown by `tandem status`.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shared.engine_mismatch import AREA, FEWEST_NATS, MISMATCH, by_engine, engines_off

FIRST_STEPS = 5  # their mean entropy is the reference for later steps


@dataclass(frozen=True, slots=True)
class Rule:
    """On if `metric` is above (or with `below`, below) `limit`."""

    name: str
    metric: str
    limit: float
    advice: str
    below: bool = False

    def is_on(self, value: float) -> bool:
        return value < self.limit if self.below else value > self.limit


RULES = (
    Rule(
        "k3",
        "loss/k3_mean",
        0.01,
        "trainer and engine disagree about the tokens, or data is old: check with `tandem verify`, lower "
        "max_staleness, or mask (geometric_mask_low/high, token_mask_low/high)",
    ),
    Rule(
        "mismatch",
        "loss/mismatch_mean_nats",
        0.1,
        "log-probs are off by more than staleness explains: compare positions, chat template and precision with "
        "`tandem verify`",
    ),
    Rule(
        "ess",
        "loss/ess_fraction",
        0.5,
        "few tokens carry the update: lower importance_weight_cap_ratio, max_staleness or the learning rate",
        below=True,
    ),
    Rule(
        "clip_fraction",
        "loss/clipped_fraction",
        0.2,
        "many tokens are outside the trust region and learn nothing: lower the learning rate or max_staleness",
    ),
    Rule(
        "masked_fraction",
        "loss/masked_fraction",
        0.2,
        "masks drop much of the data: loosen them, or lower the mismatch that they see",
    ),
    Rule(
        "zero_variance",
        "data/zero_variance_fraction",
        0.8,
        "nearly all groups have equal rewards and teach nothing: take easier or harder tasks, or more num_generations",
    ),
    Rule(
        "selects_quick",
        "selection/duration_ratio",
        0.9,
        "slow episodes are set aside as stale, so what only they teach is not learned: set stale_data keep or wait "
        "(docs/train/staleness.md); a larger max_staleness does not help",
        below=True,
    ),
    Rule(
        "selects_short",
        "selection/tokens_ratio",
        0.9,
        "long episodes are set aside as stale, so what only they teach is not learned: set stale_data keep or wait "
        "(docs/train/staleness.md); a larger max_staleness does not help",
        below=True,
    ),
    Rule(
        "skipped",
        "learner/skipped_steps",
        0.0,
        "the weights did not move, since nothing was there to train: every advantage is 0, or masks and staleness left nothing",
    ),
)
ENTROPY = Rule(
    "entropy",
    "entropy relative to the first steps",
    0.5,
    "the policy narrows: raise epsilon_higher or entropy_coefficient, lower the learning rate, or add harder tasks",
    below=True,
)


ENGINE = Rule(  # one alarm for each engine that is off, with its own metric and limit
    "engine",
    f"{AREA}/…/{MISMATCH}",
    FEWEST_NATS,
    "this engine's log-probs are far from the other engines' under the same weights: compare its data type, flags and version "
    "with theirs in `tandem status`, and end its keeper until it is repaired",
)


@dataclass(frozen=True, slots=True)
class Alarm:
    rule: Rule
    value: float
    advice: str

    def __str__(self) -> str:
        sign = "<" if self.rule.below else ">"
        return f"{self.rule.metric} {self.value:.4g} {sign} {self.rule.limit:g}: {self.advice}"


class Alarms:
    """Give each step's metrics to `check`. `history`: a metrics.jsonl whose first steps set the entropy to compare with."""

    def __init__(self, history: Path | None = None) -> None:
        self._first_entropies: deque[float] = deque(maxlen=FIRST_STEPS)
        for entropy in _entropies(history) if history is not None and history.exists() else ():
            self._remember(entropy)

    def check(
        self, metrics: Mapping[str, float], not_finite: str | None = None
    ) -> tuple[list[Alarm], dict[str, float]]:
        """Active alarms, and `alarm/NAME` for every rule whose metric exists. `not_finite`: why the gradient was not."""
        values = [(rule, metrics[rule.metric]) for rule in RULES if rule.metric in metrics]
        entropy = metrics.get("loss/entropy_mean_nats")
        if entropy is not None:
            if len(self._first_entropies) == FIRST_STEPS:
                start = sum(self._first_entropies) / FIRST_STEPS
                values.append((ENTROPY, entropy / start if start > 0 else 1.0))
            self._remember(entropy)
        alarms = [Alarm(rule, value, _advice(rule, not_finite)) for rule, value in values if rule.is_on(value)]
        engines = by_engine([metrics])
        alarms += [
            Alarm(
                replace(ENGINE, metric=f"{AREA}/{off.found.engine}/{MISMATCH}", limit=off.limit),
                off.found.mismatch,
                f"the others' mean is {off.others:.4g}; {ENGINE.advice}",
            )
            for off in engines_off(engines)
        ]
        on = {alarm.rule.name for alarm in alarms}
        rules = [*(rule for rule, _ in values), *([ENGINE] if engines else [])]
        return alarms, {f"alarm/{rule.name}": float(rule.name in on) for rule in rules}

    def _remember(self, entropy: float) -> None:
        if len(self._first_entropies) < FIRST_STEPS:
            self._first_entropies.append(entropy)


def _advice(rule: Rule, not_finite: str | None) -> str:
    """Of a gradient that is not finite: its cause, instead of the rule's own."""
    return f"the weights did not move: {not_finite}" if not_finite and rule.name == "skipped" else rule.advice


def _entropies(path: Path) -> list[float]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    values = [line.get("loss/entropy_mean_nats") for line in lines]
    return [float(value) for value in values if value is not None]
