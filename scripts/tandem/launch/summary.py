"""The figures of a finished run: `output/RUN/summary.json`. Figures of the run and of the tasks' owner are at the top
level, those of other policies in `other_policies`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from shared.errors import DataError
from shared.evaluation.pass_rates import Estimate
from shared.evaluation.rounds import EvaluationRound, Figures
from shared.files.output_names import CHECKPOINTS, STEP_FOLDER
from shared.files.written_file import write_text_whole, written_whole
from shared.store import Store
from tandem.launch.figures import EvalPoint, Snapshot, StepMetrics, mean, take_snapshot
from tandem.launch.settings import LaunchConfig


async def summarize(
    store: Store,
    policies: Sequence[LaunchConfig],
    metrics: Mapping[str, StepMetrics],
    rounds: list[EvaluationRound],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """All figures of the run so far. `policies`: the tasks' owner first; `rounds`: the owner's, by step; `metrics`: by policy;
    `seconds`: by phase, summed over all launches of the run.
    """
    owner, *others = policies
    snapshot = await take_snapshot(store, list(metrics))
    episodes, sampled = await store.questions.finished_within(None)
    trained = await _of_training(store, owner, metrics[owner.policy])
    return {
        "run": owner.run,
        "policy": owner.policy,
        "eval": {name: _eval_figures(played) for name, played in _ends(rounds).items()},
        "eval_curve": [played.to_json() for played in rounds],
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "episodes": episodes,
        **trained,
        "tokens": {"sampled": sampled, **trained["tokens"]},
        "tokens_per_s": {"sampler": _sampled_per_s(sampled, seconds), **trained["tokens_per_s"]},
        "faults": await _faults(store, snapshot),
        "reward_curve": str(owner.folder / "reward.png"),
        "other_policies": {
            config.policy: {
                "eval": {name: _other_eval_figures(played, config.policy) for name, played in _ends(rounds).items()},
                **await _of_training(store, config, metrics[config.policy]),
            }
            for config in others
        },
    }


async def _of_training(store: Store, config: LaunchConfig, metrics: StepMetrics) -> dict[str, Any]:
    """Figures of a policy's training, and the paths of its weights."""
    newest = await store.versions.newest(config.policy)
    folders = (config.policy_folder / CHECKPOINTS).glob("*")
    checkpoints = sorted(folder for folder in folders if STEP_FOLDER.fullmatch(folder.name))
    step_s = sum(metrics.column("time/total_s"))
    return {
        "steps": metrics.last_step,
        "tokens": _token_figures(metrics),
        "tokens_per_s": {"trainer": round(sum(metrics.column("data/tokens_flat")) / step_s, 1) if step_s else None},
        "staleness": {
            "mean": _clean(mean(metrics.column("data/staleness_mean"))),
            "max": max(metrics.column("data/staleness_max"), default=None),
        },
        "selection": {
            name: _clean(metrics.last.get(f"selection/{name}", math.nan))
            for name in ("set_aside_fraction", "duration_all_s", "duration_trained_s")
        },
        "mismatch_mean_nats": _clean(mean(metrics.column("loss/mismatch_mean_nats"))),
        "checkpoint": str(checkpoints[-1]) if checkpoints else None,
        "model": None if newest is None else newest.path,
    }


def _ends(rounds: list[EvaluationRound]) -> dict[str, EvaluationRound]:
    """The first and the last round."""
    return dict(zip(("before", "after"), (rounds[:1] + rounds[1:][-1:]), strict=False))


def _eval_figures(played: EvaluationRound) -> dict[str, Any]:
    by_source = {source: _reward(figures) for source, figures in played.by_source.items()}
    return {"version": played.version, **_reward(played.overall), "by_source": by_source}


def _reward(figures: Figures) -> dict[str, Any]:
    first = figures.pass_at.get(1)
    return {
        **_estimate(figures.reward),
        "pass_at_1": None if first is None else round(first.value, 6),
        "n": figures.episodes,
    }


def _other_eval_figures(played: EvaluationRound, policy: str) -> dict[str, Any]:
    """`versions`: the policy's weight versions that took its turns."""
    by_source = {
        source: {**_estimate(figures.other_rewards.get(policy)), "n": figures.episodes}
        for source, figures in played.by_source.items()
    }
    reward = _estimate(played.overall.other_rewards.get(policy))
    versions = list(played.other_versions.get(policy, ()))
    return {"versions": versions, **reward, "n": played.overall.episodes, "by_source": by_source}


def _estimate(reward: Estimate | None) -> dict[str, Any]:
    return {
        "reward": None if reward is None else round(reward.value, 6),
        "interval": None if reward is None else [round(reward.low, 6), round(reward.high, 6)],
    }


def _token_figures(metrics: StepMetrics) -> dict[str, int]:
    """`unmerged`: one forward per reply. `linear`: one per episode. `merged`: one per prefix tree of a group."""
    return {
        "trained": int(sum(metrics.column("data/tokens_trained"))),
        "unmerged": int(sum(metrics.column("data/tokens_flat"))),
        "linear": int(sum(metrics.column("data/tokens_linear"))),
        "merged": int(sum(metrics.column("data/tokens_tree"))),
        "computed": int(sum(metrics.column("data/tokens_computed"))),
    }


def _sampled_per_s(sampled: int, seconds: dict[str, float]) -> float | None:
    """Tokens per second, sampled by all samplers for all policies."""
    sampling_s = sum(seconds.get(phase, 0.0) for phase in ("eval_before", "training", "eval_after"))
    return round(sampled / sampling_s, 1) if sampling_s else None


async def _faults(store: Store, snapshot: Snapshot) -> dict[str, int]:
    """`lost_attempts`: attempts lost to an infrastructure failure or an expired lease, and played again."""
    data = await store.data.count_by_status()
    return {
        "engine_retries": int(snapshot.total("retries")),
        "lost_attempts": snapshot.lost_attempts,
        "failed_slots": snapshot.failed_slots,
        "stale_records": data.get("stale", 0),
    }


def _clean(value: float) -> float | None:
    """None instead of nan, which JSON lacks."""
    return None if math.isnan(value) else round(value, 6)


def eval_points(summary: dict[str, Any], policy: str) -> list[EvalPoint]:
    """A policy's rewards in rounds with a step. The step is the tasks' owner's."""
    is_owner = policy == summary["policy"]
    curve = [(e["step"], e["overall"]["reward"], e["overall"]["other_rewards"]) for e in summary["eval_curve"]]
    rewards = [(step, own if is_owner else others.get(policy)) for step, own, others in curve]
    return [
        EvalPoint(step, r["value"], r["low"], r["high"]) for step, r in rewards if step is not None and r is not None
    ]


def check_learning(config: LaunchConfig, metrics: Mapping[str, StepMetrics]) -> None:
    """Raises DataError for a policy of which every step was skipped: its run has failed."""
    for policy in [name for name, of_policy in metrics.items() if of_policy.never_moved]:
        why = f"`tandem status {config.run}` and the trainer's log in {config.log_folder} say why"
        raise DataError(f"policy {policy}: every step was skipped, so nothing was learned; {why}")


def write(config: LaunchConfig, summary: dict[str, Any], metrics: Mapping[str, StepMetrics]) -> None:
    """Write summary.json and reward.png atomically. Raises DataError if they cannot be written."""
    from tandem.launch.curve import write_png  # matplotlib takes a second to import, needed only at the end

    with written_whole(config.folder / "reward.png", public=True) as picture:
        write_png(picture, metrics, {policy: eval_points(summary, policy) for policy in metrics}, config.run)
    write_text_whole(config.folder / "summary.json", json.dumps(summary, indent=2) + "\n", public=True)
