"""The bias ledger: what was sampled against what is trained, by source, difficulty, length, duration, version and termination."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from shared.store.views.ledger import MOST_GROUPS, TRAINED, WAITING, Fate, fates
from shared.store.views.query import Query
from tandem.evaluation.selection_bias import ALARM_DISTANCE, ALARM_P, Comparison, compare, part, quartiles
from tandem.viewer.page_request import PageRequest
from tandem.viewer.tasks import policies_of

GROUPS = 400  # by default


@dataclass(frozen=True, slots=True)
class Side:
    """One comparison. `lost_to`: by category the reasons for which its episodes are not trained, the most frequent first."""

    name: str
    comparison: Comparison
    is_alarm: bool
    lost_to: dict[str, list[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class LedgerView:
    policy: str
    policies: list[str]
    groups: int
    most_groups: int
    before: int | None
    episodes: int
    by_fate: dict[str, int]
    by_reason: list[tuple[str, str, int, str]]  # fate, reason, episodes, an example
    sides: list[Side]
    alarms: int
    tested: int  # of the sides, those of which something can be said
    alarm_p: float
    alarm_distance: float
    queries: list[Query]


async def ledger_page(request: PageRequest) -> LedgerView:
    policies = policies_of(request)
    policy = request.text("policy", policies[0]) or policies[0]
    groups = request.number("groups", GROUPS, least=1, most=MOST_GROUPS)
    before = request.number("before", 0) or None
    rows, queries = await fates(request.store.database, policy, before, groups)
    decided = [fate for fate in rows if fate.fate != WAITING]
    names = categories(decided)
    sides = [_side(name, decided, of, len(names)) for name, of in names.items()]
    examples = {(fate.fate, fate.reason): fate.record for fate in rows}
    counts = Counter((fate.fate, fate.reason) for fate in rows)
    return LedgerView(
        policy=policy,
        policies=policies,
        groups=groups,
        most_groups=MOST_GROUPS,
        before=before,
        episodes=len(rows),
        by_fate=dict(Counter(fate.fate for fate in rows)),
        by_reason=[(*key, n, examples[key]) for key, n in counts.most_common(50)],
        sides=sides,
        alarms=sum(side.is_alarm for side in sides),
        tested=sum(side.comparison.p is not None for side in sides),
        alarm_p=ALARM_P,
        alarm_distance=ALARM_DISTANCE,
        queries=queries,
    )


def categories(decided: list[Fate]) -> dict[str, Callable[[Fate], str]]:
    """By what trained and sampled are compared."""
    tokens = quartiles([fate.tokens for fate in decided])
    seconds = quartiles([fate.seconds for fate in decided if fate.seconds is not None])
    turns = quartiles([fate.turns for fate in decided])
    versions = quartiles([fate.version for fate in decided if fate.version is not None])
    return {
        "source": lambda fate: fate.source,
        "difficulty": lambda fate: fate.difficulty,
        "sampled tokens": lambda fate: part(fate.tokens, tokens),
        "duration": lambda fate: part(fate.seconds, seconds, " s"),
        "turns": lambda fate: part(fate.turns, turns),
        "oldest version": lambda fate: part(fate.version, versions),
        "termination": lambda fate: fate.termination,
    }


def _side(name: str, decided: list[Fate], of: Callable[[Fate], str], comparisons: int) -> Side:
    comparison = compare((fate.group, of(fate), fate.fate == TRAINED) for fate in decided)
    lost: dict[str, Counter[str]] = {}
    for fate in decided:
        if fate.fate != TRAINED:
            lost.setdefault(of(fate), Counter())[f"{fate.fate}: {fate.reason}"] += 1
    return Side(
        name, comparison, comparison.is_alarm(comparisons), {key: counts.most_common(3) for key, counts in lost.items()}
    )
