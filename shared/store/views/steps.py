"""Steps: what each was made of, how old it was, which weights it came to, and what was dropped on the way."""

from collections.abc import Sequence

from shared.documents.run import PolicyVersion
from shared.documents.states import DATALESS, DataStatus
from shared.names import TRAIN_SPLIT
from shared.store.views.query import Database, Document, Query

MOST_STEPS = 50  # on one page
MOST_RECORDS = 4_096  # of one step
MOST_DROPPED = 500
MOST_DIFFERENCES = 10
SHOWN_METRICS = (
    *("reward/mean", "loss/loss", "learner/grad_norm", "data/staleness_mean", "data/staleness_max"),
    *("loss/mismatch_mean_nats", "data/merge_ratio", "data/zero_variance_fraction", "data/tokens_with_loss"),
)


def list_query(policy: str, before: int | None) -> Query:
    below = {} if before is None else {"step": {"$lt": before}}
    fields = {
        **dict.fromkeys(("policy", "step", "trainer_generation", "created_at"), 1),
        **{f"metrics.{name}": 1 for name in SHOWN_METRICS},
        "groups": {"$size": "$groups"},
        "records": {"$sum": {"$map": {"input": "$groups", "in": {"$arrayElemAt": ["$$this", 1]}}}},
    }
    return Query(
        "steps, the newest first", "trained_steps", {"policy": policy, **below}, fields, [("step", -1)], MOST_STEPS
    )


def step_query(policy: str, step: int) -> Query:
    return Query("what the trainer says of the step", "trained_steps", {"policy": policy, "step": step}, limit=100)


def data_query(policy: str, step: int) -> Query:
    """The marks on the data. Without tokens and digests."""
    fields = {"digest": 0}
    return Query(
        "what trained it",
        "record_data",
        {"trained_steps": step, "policy": policy},
        fields,
        [("task", 1), ("_id", 1)],
        MOST_RECORDS,
    )


def differences_query(policy: str, step: int) -> Query:
    """Records whose tokens the trainer and the engine disagree about most. Without the tokens."""
    return Query(
        "where engine and trainer differ most",
        "trainer_logprobs",
        {"policy": policy, "step": step},
        {"turns": 0},
        [("largest_difference", -1)],
        MOST_DIFFERENCES,
    )


def set_aside_query(policy: str, first_seq: int, last_seq: int) -> Query:
    """Data that settlement or the trainer set aside, of tasks that were opened between those of the step."""
    return Query(
        "set aside in the same stretch of tasks",
        "record_data",
        {
            "policy": policy,
            "status": {"$in": [DataStatus.DROPPED.value, DataStatus.STALE.value]},
            "claim": None,
            "seq": {"$gte": first_seq, "$lte": last_seq},
        },
        dict.fromkeys(("record", "task", "source", "status", "reason", "reward", "num_tokens", "seq"), 1),
        [("seq", 1)],
        MOST_DROPPED,
    )


def without_data_query(policy: str, first_seq: int, last_seq: int) -> Query:
    """Groups that became no training data."""
    return Query(
        "groups without training data in the same stretch of tasks",
        "tasks",
        {
            "policy": policy,
            "split": TRAIN_SPLIT,
            "status": {"$in": DATALESS},
            "seq": {"$gte": first_seq, "$lte": last_seq},
        },
        dict.fromkeys(("tid", "seq", "source", "status", "outcome", "scores"), 1),
        [("seq", 1)],
        MOST_DROPPED,
    )


def versions_query(policy: str, versions: Sequence[int]) -> Query:
    return Query(
        "the weights that sampled it",
        "policy_versions",
        {"policy": policy, "version": {"$in": sorted(versions)}},
        sort=[("version", -1)],
        limit=1_000,
    )


async def first_version_with(database: Database, policy: str, step: int) -> PolicyVersion | None:
    """The first weights of the surviving history that include a step. In that history a later version has a later step."""
    where = {"policy": policy, "step": {"$gte": step}, "withdrawn_to": None}
    versions = await Query("", "policy_versions", where, None, [("step", 1), ("version", 1)], 1).run(database)
    return PolicyVersion.from_mongo(versions[0]) if versions else None


def staleness_of(versions: Sequence[PolicyVersion], step: int) -> dict[int, int]:
    """{version: optimizer steps behind the weights that the step starts from}."""
    return {version.version: version.staleness(step - 1) for version in versions}


def counted(documents: Sequence[Document], *names: str) -> dict[tuple[str, ...], int]:
    """How many documents have the same values of `names`, the most frequent first."""
    counts: dict[tuple[str, ...], int] = {}
    for document in documents:
        key = tuple(str(document.get(name) or "–") for name in names)
        counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
