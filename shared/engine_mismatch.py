"""The mismatch of a step by the engine that sampled the tokens: its names in metrics and arrays, and which engine is off.

token ─▶ number of its engine ─▶ loss_by_engine/127.0.0.1:30000/mismatch_mean_nats ─▶ alarm, `tandem status`
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

AREA = "loss_by_engine"
TOKENS, STALENESS = "trained_tokens", "staleness_mean_steps"
MISMATCH, K3 = "mismatch_mean_nats", "k3_mean"

# An engine is off if all of this is so. Engines of one run have the same weights and, on average, the same prompts, so what
# moves all of them (staleness, the learning rate) is in the others' mean, too.
FEWEST_NATS = 0.05  # half of what the alarm of the whole step takes; bfloat16 alone is below (docs/run/engines.md)
FACTOR = 3.0  # times the others' mean: above what engines that are well differ by where the policy's own move dominates
FEWEST_TOKENS = 200  # |log x| spreads about as wide as its mean: that of 200 tokens is known to 10 %
OLDER_STEPS = 1.0  # one that lags on purpose (`follow_every`) is not off


def engine_name(url: str) -> str:
    """The URL without its scheme: `127.0.0.1:30000`."""
    return url.partition("://")[2] or url


def engine_number(url: str | None) -> int:
    """The same on every rank and in every step, so that arrays of different trees may be joined. 0: not known."""
    if url is None:
        return 0
    return int.from_bytes(hashlib.blake2b(url.encode(), digest_size=8).digest()) >> 1  # fits a signed 64-bit integer


@dataclass(frozen=True, slots=True)
class EngineMismatch:
    """Means over the trained tokens that one engine sampled; nats, staleness in steps."""

    engine: str  # `engine_name`
    tokens: float
    mismatch: float
    k3: float
    staleness: float


@dataclass(frozen=True, slots=True)
class EngineOff:
    """An engine whose mismatch is above `limit`, which follows from `others`, the mean of all other engines."""

    found: EngineMismatch
    others: float
    limit: float


def by_engine(steps: Iterable[Mapping[str, float | None]]) -> list[EngineMismatch]:
    """Of the metrics of some steps, their tokens together, by name; [] for steps with one engine each."""
    sums: dict[str, list[float]] = {}
    for metrics in steps:
        for name in metrics:
            area, _, figure = name.rpartition("/")
            if figure != TOKENS or not area.startswith(f"{AREA}/"):
                continue
            values = [metrics.get(f"{area}/{one}") for one in (TOKENS, MISMATCH, K3, STALENESS)]
            tokens, *means = [value for value in values if value is not None]
            if len(means) == 3:  # else one is not finite
                own = sums.setdefault(area.removeprefix(f"{AREA}/"), [0.0] * 4)
                own[:] = [own[0] + tokens, *(total + tokens * mean for total, mean in zip(own[1:], means, strict=True))]
    return [EngineMismatch(name, own[0], *(total / own[0] for total in own[1:])) for name, own in sorted(sums.items())]


def engines_off(engines: Sequence[EngineMismatch]) -> list[EngineOff]:
    """Those that are far from the others, the farthest first."""
    found = []
    for one in engines:
        others = [other for other in engines if other is not one]
        tokens = sum(other.tokens for other in others)
        if not tokens or one.tokens < FEWEST_TOKENS:
            continue
        mean, age = (sum(o.tokens * value(o) for o in others) / tokens for value in (_mismatch, _staleness))
        limit = max(FEWEST_NATS, FACTOR * mean)
        if one.mismatch > limit and one.staleness <= age + OLDER_STEPS:
            found.append(EngineOff(one, mean, limit))
    return sorted(found, key=lambda off: -off.found.mismatch)


def _mismatch(one: EngineMismatch) -> float:
    return one.mismatch


def _staleness(one: EngineMismatch) -> float:
    return one.staleness
