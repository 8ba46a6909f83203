"""Pages on steps: the list, and one: what it was made of, how old, which weights, and what was dropped and why."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from shared.documents.run import PolicyVersion, TrainedStep, survives
from shared.store.views.query import Document, Query
from shared.store.views.steps import (
    MOST_RECORDS,
    MOST_STEPS,
    SHOWN_METRICS,
    counted,
    data_query,
    differences_query,
    first_version_with,
    list_query,
    set_aside_query,
    staleness_of,
    step_query,
    versions_query,
    without_data_query,
)
from tandem.viewer.page_request import BadQuestion, NotThere, PageRequest
from tandem.viewer.tasks import policies_of


@dataclass(frozen=True, slots=True)
class StepsView:
    policy: str
    policies: list[str]
    steps: list[Document]
    metrics: tuple[str, ...]
    older: int | None
    queries: list[Query]


async def steps_page(request: PageRequest) -> StepsView:
    policies = policies_of(request)
    policy = request.text("policy", policies[0]) or policies[0]
    query = list_query(policy, request.number("before", 0) or None)
    steps = await query.run(request.store.database)
    starts = request.run.starts.get(policy, [])
    rows = [
        {
            **{name: value for name, value in step.items() if name != "metrics"},
            "metrics": step.get("metrics") or {},
            "survives": all(began >= step["step"] for began in starts[step["trainer_generation"] :]),
        }
        for step in steps
    ]
    older = rows[-1]["step"] if len(rows) == MOST_STEPS else None
    return StepsView(policy, policies, rows, SHOWN_METRICS, older, [query])


@dataclass(frozen=True, slots=True)
class StepView:
    policy: str
    step: int
    logged: TrainedStep | None  # of the surviving history
    undone: list[TrainedStep]  # the same step of trainers whose work a resume undid
    data: list[dict[str, Any]]  # what the marks say, group by group
    records: int
    cut: bool
    tokens: int
    trained_tokens: int
    reward: float | None
    by_source: dict[tuple[str, ...], int]
    versions: list[dict[str, Any]]
    first_version: PolicyVersion | None
    set_aside: list[Document]
    why_set_aside: dict[tuple[str, ...], int]
    without_data: list[Document]
    why_without: dict[tuple[str, ...], int]
    differences: list[Document]  # records with the largest difference of a token between engine and trainer
    disagreement: str
    queries: list[Query]


async def step_page(request: PageRequest) -> StepView:
    policy, number, database = request.id("policy"), _number(request.id("step")), request.store.database
    listing, marks = step_query(policy, number), data_query(policy, number)
    logged = [TrainedStep.from_mongo(document) for document in await listing.run(database)]
    data = await marks.run(database)
    if not logged and not data:
        raise NotThere(f"run {request.run.name} has no step {number} of policy {policy[:80]!r}")
    starts = request.run.starts.get(policy, [])
    surviving = next((step for step in logged if step.survives(starts)), None)
    versions = sorted({version for d in data for version in d.get("versions") or ()})
    sampled_by = versions_query(policy, versions)
    published = [PolicyVersion.from_mongo(document) for document in await sampled_by.run(database)]
    seqs = [d["seq"] for d in data]
    aside = set_aside_query(policy, min(seqs, default=0), max(seqs, default=-1))
    without = without_data_query(policy, min(seqs, default=0), max(seqs, default=-1))
    set_aside, without_data = await aside.run(database), await without.run(database)
    differ = differences_query(policy, number)
    differences = [d for d in await differ.run(database) if survives(number, d["trainer_generation"], starts)]
    return StepView(
        policy=policy,
        step=number,
        logged=surviving,
        undone=[step for step in logged if step is not surviving],
        data=_groups(data),
        records=len(data),
        cut=len(data) == MOST_RECORDS,
        tokens=sum(d["num_tokens"] for d in data),
        trained_tokens=sum(d["num_trained_tokens"] for d in data),
        reward=sum(d["reward"] for d in data) / len(data) if data else None,
        by_source=counted(data, "source"),
        versions=_versions(data, published, number),
        first_version=await first_version_with(database, policy, number),
        set_aside=set_aside,
        why_set_aside=counted(set_aside, "status", "reason"),
        without_data=without_data,
        why_without=counted(without_data, "outcome"),
        differences=differences,
        disagreement=_disagreement(surviving, data),
        queries=[listing, marks, sampled_by, aside, without, differ],
    )


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise BadQuestion(f"step is {text[:80]!r}; expected a whole number")
    return int(text)


def _groups(data: list[Document]) -> list[dict[str, Any]]:
    by_task: dict[str, list[Document]] = {}
    for d in data:
        by_task.setdefault(d["task"], []).append(d)
    return [
        {
            "task": task,
            "source": own[0]["source"],
            "seq": own[0]["seq"],
            "records": [{"id": d["record"], "reward": d["reward"], "advantage": _advantage(d)} for d in own],
            "tokens": sum(d["num_trained_tokens"] for d in own),
            "versions": sorted({v for d in own for v in d.get("versions") or ()}),
            "same_rewards": len({d["reward"] + d.get("shaping", 0.0) for d in own}) == 1,
        }
        for task, own in sorted(by_task.items(), key=lambda item: item[1][0]["seq"])
    ]


def _advantage(data: Document) -> float | None:
    advantages = [d["advantage"] for d in data["dispatches"]]
    return sum(advantages) / len(advantages) if advantages else None


def _versions(data: list[Document], published: list[PolicyVersion], step: int) -> list[dict[str, Any]]:
    """By version that sampled trained tokens: how old at this step, and in how many records."""
    behind = staleness_of(published, step)
    counts = Counter(version for d in data for version in d.get("versions") or ())
    known = {version.version: version for version in published}
    return [
        {
            "version": version,
            "staleness": behind.get(version),
            "records": counts[version],
            "step": known[version].step if version in known else None,
            "withdrawn": version in known and known[version].withdrawn_to is not None,
        }
        for version in sorted(counts, reverse=True)
    ]


def _disagreement(logged: TrainedStep | None, data: list[Document]) -> str:
    """Where the trainer's word and the marks differ; empty if they agree."""
    if logged is None:
        return (
            "no trainer of the surviving history says that it took this step; `tandem audit` explains marks and steps"
        )
    marked = Counter(d["task"] for d in data)
    if dict(marked) == dict(logged.groups):
        return ""
    return f"the trainer says {sum(n for _, n in logged.groups)} records, the marks are on {sum(marked.values())}"
