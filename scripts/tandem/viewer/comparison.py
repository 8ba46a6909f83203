"""Two rollouts side by side, and two weight versions on the same held-out tasks."""

import math
from dataclasses import dataclass

from shared.documents import Record
from shared.documents.passing import num_passed
from shared.documents.run import PolicyVersion
from shared.episodes.images import compared_tokens
from shared.names import EVAL_SPLIT
from shared.store.views.query import Query
from shared.store.views.rollouts import record_queries
from shared.store.views.steps import versions_query
from tandem.viewer.images import known_images
from tandem.viewer.page_request import BadQuestion, PageRequest
from tandem.viewer.rollout import TurnView, episode_of, images_of, turn_view
from tandem.viewer.tasks import policies_of

MOST_HELD_OUT = 2_000  # tasks of a round


@dataclass(frozen=True, slots=True)
class TwoRollouts:
    records: list[Record]
    rows: list[list[TurnView | None]]  # by place, of either
    first_token: int | None  # at which the first difference is, of the whole sequences of their first turns
    first_turn: int | None
    queries: list[Query]


async def rollouts_page(request: PageRequest) -> TwoRollouts:
    names = [request.text("a"), request.text("b")]
    if names == [None, None]:
        return TwoRollouts([], [], None, None, record_queries("RECORD", "TASK"))
    if None in names:
        raise BadQuestion("expected two rollouts: ?a=RECORD&b=RECORD")
    episodes = [await episode_of(request, name) for name in names]
    a, b = (episode.state for episode in episodes)
    longest = max(len(a.turns), len(b.turns))
    known = [await known_images(request.store, images_of(episode)) for episode in episodes]
    sides = [(episode.state, images) for episode, (images, _) in zip(episodes, known, strict=True)]
    rows = [
        [turn_view(s.turns[k], s, images) if k < len(s.turns) else None for s, images in sides] for k in range(longest)
    ]
    token = turn = None
    for k in range(longest):
        ids = [compared_tokens(s, s.turns[k].number) if k < len(s.turns) else [] for s in (a, b)]
        if ids[0] != ids[1]:
            common = zip(ids[0], ids[1], strict=False)
            token = next((n for n, (x, y) in enumerate(common) if x != y), min(map(len, ids)))
            turn = k
            break
    queries = [query for e in episodes for query in record_queries(e.record.id, e.record.task)]
    queries += [query for _, asked in known for query in asked]
    return TwoRollouts([e.record for e in episodes], rows, token, turn, queries)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One held-out task under both versions: (passed, scored)."""

    tid: str
    source: str
    ids: list[str]
    passed: list[tuple[int, int]]
    means: list[float]


@dataclass(frozen=True, slots=True)
class TwoVersions:
    policy: str
    policies: list[str]
    versions: list[PolicyVersion]
    asked_for: list[int]
    tasks: list[HeldOut]
    means: list[float | None]
    better: int
    worse: int
    p: float | None
    queries: list[Query]


async def versions_page(request: PageRequest) -> TwoVersions:
    policies = policies_of(request)
    policy = request.text("policy", policies[0]) or policies[0]
    numbers = [request.number("a", 0), request.number("b", 0)]
    database = request.store.database
    published = versions_query(policy, numbers)
    versions = [PolicyVersion.from_mongo(document) for document in await published.run(database)]
    rounds = [_round_query(policy, number) for number in numbers]
    first, second = [{d["tid"]: d for d in await query.run(database)} for query in rounds]
    tasks = []
    for tid in sorted(first.keys() & second.keys()):
        scores = [[s for s in d.get("scores") or [] if s is not None] for d in (first[tid], second[tid])]
        if all(scores):
            tasks.append(
                HeldOut(
                    tid,
                    str(first[tid]["source"]),
                    [first[tid]["_id"], second[tid]["_id"]],
                    [(num_passed(own), len(own)) for own in scores],
                    [math.fsum(own) / len(own) for own in scores],
                )
            )
    better = sum(task.means[1] > task.means[0] for task in tasks)
    worse = sum(task.means[1] < task.means[0] for task in tasks)
    return TwoVersions(
        policy=policy,
        policies=policies,
        versions=versions,
        asked_for=numbers,
        tasks=sorted(tasks, key=lambda task: task.means[1] - task.means[0]),
        means=[math.fsum(t.means[k] for t in tasks) / len(tasks) if tasks else None for k in (0, 1)],
        better=better,
        worse=worse,
        p=sign_test(better, worse),
        queries=[published, *rounds],
    )


def _round_query(policy: str, version: int) -> Query:
    return Query(
        f"held-out tasks at version {version}",
        "tasks",
        {"policy": policy, "split": EVAL_SPLIT, "epoch": version},
        {"tid": 1, "source": 1, "scores": 1, "at_version": 1},
        [("tid", 1)],
        MOST_HELD_OUT,
    )


def sign_test(better: int, worse: int) -> float | None:
    """Two-sided, exact, over the tasks that differ: the sign test, of passes McNemar's (Psychometrika 12, 1947)."""
    n = better + worse
    if n == 0:
        return None
    tail: float = sum(math.comb(n, k) for k in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2 * tail)
