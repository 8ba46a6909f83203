"""What a step's data was: counts over all ranks, rewards by source, staleness."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from trainer.data.reading import Share
from trainer.process.peers import Peers
from trainer.trees.tree import TokenTree


def batch_metrics(shares: Sequence[Share], own: Peers, *, prefetched: int) -> dict[str, float]:
    """Of all ranks' shares of all updates. `prefetched`: groups of this rank that were read ahead. Every rank must call it."""
    data = [d for share in shares for d in share.data]
    trees = [tree for share in shares for tree in share.trees]
    rows = [row for share in shares for row in share.minibatch.rows]
    counts = {
        "data/groups": float(len(trees)),
        "data/records": float(len(data)),
        "data/tokens_flat": float(sum(t.num_flat for t in trees)),
        "data/tokens_linear": float(sum(t.num_linear for t in trees)),
        "data/tokens_tree": float(sum(t.num_tree for t in trees)),
        "data/tokens_computed": float(sum(row.num_tokens for row in rows)),
        "data/tokens_trained": float(sum(d.num_trained_tokens for d in data)),
        "data/tokens_with_loss": float(sum(row.num_entries for row in rows)),
        "data/tokens_too_old": float(sum(share.tokens_too_old for share in shares)),
        "data/rows": float(len(rows)),
        "data/prefetched_fraction": float(prefetched),
        "data/images": float(len({digest for row in rows if row.images is not None for digest in row.images.digests})),
    }
    totals = dict(zip(counts, own.sum_scalars(list(counts.values())), strict=True))
    if not totals["data/images"]:
        del totals["data/images"]
    totals["data/prefetched_fraction"] /= totals["data/groups"]
    totals["data/merge_ratio"] = totals["data/tokens_flat"] / max(totals["data/tokens_tree"], 1.0)
    totals["data/split_overhead"] = totals["data/tokens_computed"] / max(totals["data/tokens_tree"], 1.0) - 1.0
    gathered = own.gather_objects(
        ([(d.source, d.task, d.reward, d.metrics) for d in data], _tokens_by_staleness(trees))
    )
    totals |= _staleness([of_rank for _, of_rank in gathered])
    records = [row for of_rank, _ in gathered for row in of_rank]
    totals |= _rewards([(source, task, reward) for source, task, reward, _ in records])
    return totals | _own_metrics([(source, metrics) for source, _, _, metrics in records])


def _tokens_by_staleness(trees: Sequence[TokenTree]) -> dict[float, int]:
    """{staleness in steps: tokens with a loss}."""
    counts: Counter[float] = Counter()
    for tree in trees:
        staleness, tokens = np.unique(tree.entries.staleness_E, return_counts=True)
        counts.update(dict(zip(staleness.tolist(), tokens.tolist(), strict=True)))
    return counts


def _staleness(counts: Sequence[Mapping[float, int]]) -> dict[str, float]:
    """Over tokens, not groups: a token has the staleness of its own version."""
    tokens = sum(sum(of_rank.values()) for of_rank in counts)
    total = sum(steps * n for of_rank in counts for steps, n in of_rank.items())
    return {
        "data/staleness_mean": total / max(tokens, 1),
        "data/staleness_max": max((steps for of_rank in counts for steps in of_rank), default=0.0),
    }


def _rewards(rows: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """Of (source, task, reward) of every record. Groups of equal rewards teach a group baseline nothing."""
    rewards = np.array([reward for _, _, reward in rows])
    result = {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    for source in sorted({source for source, _, _ in rows}):
        result[f"reward_by_source/{source}"] = float(np.mean([reward for s, _, reward in rows if s == source]))
    groups: dict[str, list[float]] = {}
    for _, task, reward in rows:
        groups.setdefault(task, []).append(reward)
    if len(groups) > 1:  # of the groups' means: what an interval of reward/mean is made of
        result["reward/group_std"] = float(np.std([np.mean(group) for group in groups.values()], ddof=1))
    effective = sum(max(group) - min(group) > 1e-6 for group in groups.values())
    result["data/effective_groups"] = float(effective)
    result["data/zero_variance_fraction"] = 1.0 - effective / len(groups)
    return result


def _own_metrics(rows: Sequence[tuple[str, Mapping[str, float]]]) -> dict[str, float]:
    """Means of what the samplers said of their records, each over those that say it; in all and by source."""
    values: dict[str, list[float]] = {}
    for source, metrics in rows:
        for name, value in metrics.items():
            values.setdefault(f"metric/{name}", []).append(value)
            values.setdefault(f"metric_by_source/{source}/{name}", []).append(value)
    return {key: float(np.mean(of_key)) for key, of_key in sorted(values.items())}
