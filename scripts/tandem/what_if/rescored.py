"""A played group as if its episodes had just ended: scored by other scorers, from what is stored, and not settled yet.

    documents of a group ─▶ the conversation of each scored episode ─▶ scorers ─▶ the documents before settlement

Tokens, log-probs and versions stay as they are, bit for bit. What settlement and training wrote is taken away.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sampler.core.api_models import Agents
from sampler.core.episode.log import EpisodeLog
from sampler.core.episode.scoring import score_text
from sampler.core.parsers import get_parser
from sampler.core.rendering.reply_message import message_of, with_call_ids, words_of
from sampler.core.rendering.transcript import Transcript, joined
from sampler.core.scorers import Score
from sampler.core.scorers.answers import extract_answer
from sampler.core.scorers.scored_text import NOTHING, ScoredText
from sampler.core.scorers.weighted import scorers_of
from sampler.core.settings.core_config import CoreConfig
from shared.documents import DispatchedSamplingTask, Record, Task
from shared.documents.scoring import WeightedScorer, of_group
from shared.documents.states import BranchCause, RecordStatus, SlotStatus, TaskStatus
from shared.documents.tool_schemas import Tools, ToolSchemas
from shared.errors import DataError
from shared.store.pipelines import EPOCH
from shared.store.resettling import PlayedGroup
from shared.tokens.flatten import answered

Document = dict[str, Any]
SETTLED_FIELDS: Document = {
    "status": TaskStatus.COMPLETED.value,
    "scores": [],
    "data_of": [],
    "outcome": None,
    "settler": None,
    "settled_at": None,
    "free_at": EPOCH,
}
TRAINED_FIELDS: Document = {
    "advantage": None,
    "reason": None,
    "trained_count": 0,
    "last_trained_step": None,
    "revision": 0,
}


@dataclass(slots=True)
class RescoredResources:
    agents: Agents


@dataclass(slots=True)
class RescoredEpisode:
    """An episode that has ended, for its scorers (`sampler.core.episode.scoring.PlayedEpisode`)."""

    config: CoreConfig
    resources: RescoredResources
    task: Task
    scorers: Sequence[WeightedScorer]
    conversation: tuple[Mapping[str, Any], ...]
    episode: EpisodeLog = field(default_factory=EpisodeLog)


Rescored = tuple[Score, EpisodeLog]  # of one record


async def rescored(
    group: PlayedGroup, config: CoreConfig, agents: Agents, scorers: Sequence[WeightedScorer]
) -> dict[str, Rescored]:
    """{record: its score}, of the group's scored episodes. `scorers`: in place of the task's. Raises ScorerFailed, AgentFailed,
    ConfigError, and DataError for what cannot be scored from its conversation."""
    task = Task.from_mongo(group["tasks"][0])
    chosen = scorers or scorers_of(
        task.payload, config.scoring.default_scorer, config.scoring.default_scorers, agents.judge
    )
    names = [slot.record_id for slot in task.slots if slot.status is SlotStatus.SCORED]
    records = {d["_id"]: Record.from_mongo(d) for d in group["records"] if d["_id"] in names}
    dispatches = [DispatchedSamplingTask.from_mongo(d) for d in group["dispatched_sampling_tasks"]]
    tools = {d["_id"]: ToolSchemas.from_mongo(d).schemas() for d in group["tool_schemas"]}

    async def one(record: Record) -> Rescored:
        own = [d for d in dispatches if d.record == record.id and record.includes(d.id)]
        stored, last, answer = _stored(task, record, own, config, agents, chosen, tools=tools)
        return await score_text(stored, last, answer), stored.episode

    results = await asyncio.gather(*(one(record) for record in records.values()), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return dict(zip(records, [result for result in results if not isinstance(result, BaseException)], strict=True))


# 7 parameters: one record, and what its scoring needs
def _stored(
    task: Task,
    record: Record,
    dispatches: Sequence[DispatchedSamplingTask],
    config: CoreConfig,
    agents: Agents,
    scorers: Sequence[WeightedScorer],
    *,
    tools: Mapping[str, Tools],
) -> tuple[RescoredEpisode, ScoredText, str | None]:
    """The episode, its last reply, and the answer in it."""
    if record.actors or record.policy_scores:
        whose = "seats" if record.actors else "other policies"
        raise DataError(
            f"record {record.id}: its {whose} have scores of their own, which no scorer of the conversation can give; settle "
            "this run without --scorer and --rescore"
        )
    own = sorted((d for d in answered(dispatches) if d.policy in (None, record.policy)), key=lambda d: d.turn)
    parser = get_parser(config.prompt.tool_call_parser)
    threads: dict[str | None, Transcript] = {}
    log = EpisodeLog()
    for dispatch in own:
        assert dispatch.response is not None, "it is answered"
        parsed = parser(dispatch.response.text, tools.get(dispatch.tools_hash, ()))
        message = message_of(with_call_ids(parsed, dispatch.turn))
        transcript = threads.setdefault(dispatch.thread, Transcript())
        transcript.received(dispatch.messages, restart=dispatch.branch_cause is BranchCause.CONTEXT_POLICY)
        transcript.replied(message, frozenset({words_of(message), words_of({"content": dispatch.response.text})}))
        log.tool_calls[dispatch.id] = tuple(dispatch.tool_calls)
    last = ScoredText.of_reply(own[-1]) if own else NOTHING
    answer = extract_answer(last.answer_text, task.payload.answer_schema)
    in_reasoning = answer is None and extract_answer(last.text, task.payload.answer_schema) == record.answer
    if record.session is not None or (answer is None and not in_reasoning):
        answer = record.answer  # an agent said it, or a sampler of one's own extracted it
    stored = RescoredEpisode(config, RescoredResources(agents), task, scorers, joined(list(threads.values())), log)
    return stored, last, answer


def unsettled(group: PlayedGroup, scores: Mapping[str, Rescored]) -> PlayedGroup:
    """The group's documents before its settlement, all but the task (`unsettled_task`)."""
    (task,) = group["tasks"]
    current = {slot.get("record_id") for slot in task["slots"] if slot["status"] == SlotStatus.SCORED}
    records = [
        _record(record, scores.get(record["_id"])) if record["_id"] in current else record | _unmarked(record)
        for record in group["records"]
    ]
    dispatches = [_dispatch(dispatch, rescored=bool(scores)) for dispatch in group["dispatched_sampling_tasks"]]
    return {"tool_schemas": group["tool_schemas"], "dispatched_sampling_tasks": dispatches, "records": records}


def unsettled_task(
    task: Document,
    scores: Mapping[str, float | None],
    scored: Mapping[str, Rescored],
    scorers: Sequence[WeightedScorer],
) -> Document:
    """`scores`: of the records, as they are stored in the new run."""
    slots = [_slot(slot, scores, scored) if slot["status"] == SlotStatus.SCORED else slot for slot in task["slots"]]
    made = {**task, **SETTLED_FIELDS, "slots": slots}
    if scored:
        made = {name: value for name, value in made.items() if name not in ("group_scores", "scoring")}
    if scored and scorers:
        payload = {name: value for name, value in task["payload"].items() if name not in ("scorer", "scorers")}
        made["payload"] = payload | {"scorer": None, "scorers": [one.model_dump() for one in scorers]}
    return made


def _unmarked(record: Document) -> Document:
    return {name: value for name, value in TRAINED_FIELDS.items() if name in record}


def _record(record: Document, scored: Rescored | None) -> Document:
    made = {**record, **_unmarked(record), "status": RecordStatus.SCORED.value}
    if scored is None:
        return made
    score, log = scored
    own_metrics = {
        name: v for name, v in (record.get("metrics") or {}).items() if not name.startswith(("score_", "judge_"))
    }
    return made | {
        "score": float(score.value),
        "reward_details": dict(score.details),
        "answer": log.answer,
        "metrics": own_metrics | log.metrics,
        "without_feedback": None,
    }


def _dispatch(dispatch: Document, *, rescored: bool) -> Document:
    """Scores of turns are parts of the old score."""
    gone = ("advantage", "score") if rescored else ("advantage",)
    return {name: value for name, value in dispatch.items() if name not in gone}


def _slot(slot: Document, scores: Mapping[str, float | None], scored: Mapping[str, Rescored]) -> Document:
    made = dict(slot)
    name = str(slot.get("record_id"))
    if name not in scored:
        return made
    made = {key: value for key, value in made.items() if key != "group_scorers"}
    return made | {
        "score": scores[name],
        "feedback": [],
        "score_without_feedback": None,
        **of_group(scored[name][0].group_scorers),
    }
