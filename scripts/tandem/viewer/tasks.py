"""The page on tasks: pass rates by source and difficulty over time, and the newest groups."""

from dataclasses import dataclass
from typing import Any

from shared.documents.passing import num_passed
from shared.documents.states import TaskStatus
from shared.names import DEFAULT_POLICY, SPLITS, TRAIN_SPLIT
from shared.store.views.groups import (
    GROUPS_PER_BUCKET,
    MOST_LISTED,
    Passed,
    Stretch,
    difficulty,
    list_query,
    newest_seq,
    pass_rates,
)
from shared.store.views.query import Document, Query
from tandem.viewer.page_request import PageRequest, check_split


@dataclass(frozen=True, slots=True)
class TasksView:
    policy: str
    policies: list[str]
    split: str
    splits: tuple[str, ...]
    source: str | None
    status: str | None
    stretches: list[Stretch]
    sources: list[str]
    rates: list[list[float | None]]  # by source, in time: of the chart
    groups_per_step: int | None
    sample: int
    groups: list[Document]
    older: int | None  # `before` of the next page
    queries: list[Query]


async def tasks_page(request: PageRequest) -> TasksView:
    policies = policies_of(request)
    policy = request.text("policy", policies[0]) or policies[0]
    split = check_split(request.text("split", TRAIN_SPLIT) or TRAIN_SPLIT)
    source, status = request.text("source"), request.text("status")
    database = request.store.database
    stretches, sampled = await pass_rates(database, policy, split)
    before = request.number("before", 0) or await newest_seq(database, policy, split)
    where: Document = {"source": source} if source else {}
    where |= {"status": status} if status else {"status": {"$ne": TaskStatus.CREATED.value}}
    listed = list_query(policy, split, before, where)
    groups = [_with_difficulty(document) for document in await listed.run(database)]
    sources = sorted({name for stretch in stretches for name in stretch.by_source})
    admission = request.run.admission.get(policy)
    return TasksView(
        policy=policy,
        policies=policies,
        split=split,
        splits=SPLITS,
        source=source,
        status=status,
        stretches=stretches,
        sources=sources,
        rates=[[stretch.by_source.get(name, Passed()).rate for stretch in stretches] for name in sources],
        groups_per_step=admission.groups_per_step if admission and split == TRAIN_SPLIT else None,
        sample=GROUPS_PER_BUCKET,
        groups=groups,
        older=groups[-1]["seq"] if len(groups) == MOST_LISTED else None,
        queries=[listed, sampled],
    )


def policies_of(request: PageRequest) -> list[str]:
    """Of the run, those with a trainer first; never empty."""
    run = request.run
    return [*run.admission, *(p for p in run.starts if p not in run.admission)] or [DEFAULT_POLICY]


def _with_difficulty(document: Document) -> dict[str, Any]:
    scores = [score for score in document.get("scores") or [] if score is not None]
    passed = num_passed(scores)
    return {
        **document,
        "passed": passed,
        "scored": len(scores),
        "difficulty": difficulty(passed, len(scores)).replace("_", " ") if scores else None,
        "mean": sum(scores) / len(scores) if scores else None,
    }
