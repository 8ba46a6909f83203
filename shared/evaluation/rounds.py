"""Results of evaluation rounds from the documents: pass@1, pass@k and mean reward by source, with confidence intervals.

    for played in await evaluation_rounds(store, "main"):     # a curve: one round per weight version, in order of steps
        print(played.step, played.overall.pass_at[1], played.overall.reward)

Each task counts once, for any number of scored episodes. Episodes with an infrastructure failure have no score and count as
`failed`, never as wrong. `shared.evaluation.pass_rates` defines estimates and intervals. Other policies that took turns have
separate rewards for the same episodes.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared.documents import Task
from shared.documents.passing import num_passed
from shared.documents.run import PolicyVersion
from shared.documents.states import SlotStatus, TaskStatus
from shared.evaluation.pass_rates import Estimate, bootstrap, pass_at_k, wilson
from shared.store import Store

MAX_CAUSE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of a round or of one source. `tasks`: tasks with a score; `pass_at[k]` is over those with at least k episodes.

    `causes`: {beginning of the error: number of `failed` episodes}.
    """

    tasks: int
    episodes: int
    failed: int
    causes: dict[str, int]
    reward: Estimate | None
    other_rewards: dict[str, Estimate]  # by policy, of other policies that took turns
    pass_at: dict[int, Estimate]
    terminations: dict[str, int]
    turns_mean: float
    tokens_mean: float
    tokens: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "pass_at": {str(k): asdict(estimate) for k, estimate in self.pass_at.items()}}


@dataclass(frozen=True, slots=True)
class EvaluationRound:
    """One round. `version` None: its tasks were not bound to a version; `versions` sampled its episodes.

    `other_versions`: those of other policies that took turns, the newest at the time, possibly several.
    """

    version: int | None
    step: int | None
    withdrawn: bool
    done: int
    total: int
    versions: tuple[int, ...]
    other_versions: dict[str, tuple[int, ...]]
    overall: Figures
    by_source: dict[str, Figures]

    @property
    def complete(self) -> bool:
        return 0 < self.total <= self.done

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "step": self.step,
            "withdrawn": self.withdrawn,
            "complete": self.complete,
            "tasks_done": self.done,
            "tasks_total": self.total,
            "versions": list(self.versions),
            "other_versions": {policy: list(versions) for policy, versions in self.other_versions.items()},
            "overall": self.overall.to_json(),
            "by_source": {source: figures.to_json() for source, figures in self.by_source.items()},
        }


async def evaluation_rounds(store: Store, policy: str, *, withdrawn: bool = False) -> list[EvaluationRound]:
    """All rounds by step, including unfinished ones; rounds at withdrawn versions only if `withdrawn`."""
    known = {version.version: version for version in await store.versions.all(policy)}
    rounds = [await evaluation_round(store, policy, epoch, known) for epoch in await store.evaluation.epochs(policy)]
    counted = [played for played in rounds if withdrawn or not played.withdrawn]
    return sorted(counted, key=lambda played: (-1 if played.step is None else played.step, played.version or 0))


async def evaluation_round(
    store: Store, policy: str, epoch: int, known: Mapping[int, PolicyVersion] | None = None
) -> EvaluationRound:
    """The round of `epoch`, which equals its version. `known`: the policy's versions, if already loaded."""
    tasks = await store.evaluation.round_tasks(policy, epoch)
    done, total = await store.evaluation.count_round(policy, epoch)
    ids = [slot.record_id for task in tasks for slot in task.slots if slot.record_id is not None]
    records = await store.evaluation.round_records(ids)
    bound = {task.at_version for task in tasks}
    version = bound.pop() if len(bound) == 1 else None
    if known is None:
        known = {} if version is None else await store.versions.some(policy, [version])
    announced = known.get(version) if version is not None else None
    sources = sorted({task.source for task in tasks})
    scored = [records[rid] for rid in _scored(tasks) if rid in records]
    return EvaluationRound(
        version=version,
        step=announced.step if announced else 0 if version == 0 else None,
        withdrawn=announced is not None and announced.withdrawn_to is not None,
        done=done,
        total=total,
        versions=tuple(sorted({v for row in scored for v in row.get("policy_versions", ())})),
        other_versions={other: _versions(scored, other) for other in _others(scored)},
        overall=_figures(tasks, records),
        by_source={source: _figures([t for t in tasks if t.source == source], records) for source in sources},
    )


def _others(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Other policies that took turns in some of these records."""
    return sorted({policy for row in rows for policy in row.get("other_policy_versions", ())})


def _versions(rows: Sequence[Mapping[str, Any]], other: str) -> tuple[int, ...]:
    return tuple(sorted({v for row in rows for v in row.get("other_policy_versions", {}).get(other, ())}))


def _scored(tasks: Sequence[Task]) -> list[str]:
    slots = [slot for task in tasks for slot in task.slots]
    return [slot.record_id for slot in slots if slot.status is SlotStatus.SCORED and slot.record_id is not None]


def _figures(tasks: Sequence[Task], records: Mapping[str, Mapping[str, Any]]) -> Figures:
    played = [task for task in tasks if task.status is not TaskStatus.SKIPPED]
    groups = list(filter(None, map(_scores, played)))
    rows = [records[rid] for rid in _scored(played) if rid in records]
    most = max((len(scores) for scores in groups), default=0)
    tokens = [int(row["num_tokens"]) for row in rows]
    causes = Counter(
        (slot.error or "no reason given")[:MAX_CAUSE_CHARS]
        for task in played
        for slot in task.slots
        if slot.status is SlotStatus.FAILED
    )
    return Figures(
        tasks=len(groups),
        episodes=sum(map(len, groups)),
        failed=causes.total(),
        causes=dict(causes.most_common()),
        reward=bootstrap([sum(scores) / len(scores) for scores in groups]) if groups else None,
        other_rewards={other: _other_reward(played, records, other) for other in _others(rows)},
        pass_at={k: _pass_at(groups, k) for k in _ks(most)},
        terminations=dict(sorted(Counter(str(row["termination"]) for row in rows).items())),
        turns_mean=sum(int(row["num_turns"]) for row in rows) / len(rows) if rows else 0.0,
        tokens_mean=sum(tokens) / len(rows) if rows else 0.0,
        tokens=sum(tokens),
    )


def _scores(task: Task) -> list[float]:
    return [s.score for s in task.slots if s.status is SlotStatus.SCORED and s.score is not None]


def _other_reward(tasks: Sequence[Task], records: Mapping[str, Mapping[str, Any]], other: str) -> Estimate:
    """Reward over the episodes in which `other` took turns; without a score of its own it has the task's."""
    of_tasks = [[records[rid] for rid in _scored([task]) if rid in records] for task in tasks]
    scores = [
        [row["policy_scores"].get(other, row["score"]) for row in rows if other in row.get("other_policy_versions", ())]
        for rows in of_tasks
    ]
    return bootstrap([sum(rewards) / len(rewards) for rewards in scores if rewards])


def _pass_at(groups: Sequence[Sequence[float]], k: int) -> Estimate:
    return wilson([pass_at_k(len(scores), num_passed(scores), k) for scores in groups if len(scores) >= k])


def _ks(most: int) -> list[int]:
    """Powers of two and the size of the largest group."""
    return sorted({2**i for i in range(most.bit_length())} | {most}) if most else []


def best_steps(metrics_path: Path, count: int) -> list[int]:
    """The steps with the best held-out rewards in a trainer's `metrics.jsonl`, best first; the later of equal ones."""
    if count < 1 or not metrics_path.exists():
        return []
    lines = (json.loads(line) for line in metrics_path.read_text(encoding="utf-8").splitlines())
    reward_at = {int(line["eval/step"]): line["eval/reward"] for line in lines if line.get("eval/reward") is not None}
    return sorted(reward_at, key=lambda step: (-reward_at[step], -step))[:count]
