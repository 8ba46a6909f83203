"""States of every document, and the only moves between them. The store's verbs name the state they expect."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

Status = TypeVar("Status", bound=StrEnum)


class TaskStatus(StrEnum):
    """One question, answered by a group of episodes."""

    CREATED = "created"  # imported, no slot was claimed
    RUNNING = "running"  # at least one slot was claimed
    COMPLETED = "completed"  # every slot is scored or failed; waits for settlement
    SETTLED = "settled"  # advantages are written, records are ready (or counted, for evaluation)
    ABANDONED = "abandoned"  # settled without training data; `outcome` says why
    SKIPPED = "skipped"  # never to be opened (or, for an evaluation, never to be ended); `outcome` says why


# What is asked of tasks by several states at once, as the database knows them.
CLAIMABLE = [TaskStatus.CREATED.value, TaskStatus.RUNNING.value]  # may have a slot to play
OPENED = [TaskStatus.RUNNING.value, TaskStatus.COMPLETED.value]  # on their way to become data
UNENDED = [TaskStatus.CREATED.value, *OPENED]  # may still become data
OVER = [
    TaskStatus.SETTLED.value,
    TaskStatus.ABANDONED.value,
    TaskStatus.SKIPPED.value,
]  # nothing happens to them any more
PLAYED = [
    TaskStatus.COMPLETED.value,
    TaskStatus.SETTLED.value,
    TaskStatus.ABANDONED.value,
]  # every slot is scored or failed
NEVER_OPENED = [TaskStatus.CREATED.value, TaskStatus.SKIPPED.value]  # no slot was claimed


class SlotStatus(StrEnum):
    """One episode of a task's group."""

    OPEN = "open"  # may be claimed once `free_at` has passed
    LEASED = "leased"  # a worker plays it until `free_at`
    SCORED = "scored"  # has its score; final
    FAILED = "failed"  # the infrastructure failed too often; never a score; final


class RecordStatus(StrEnum):
    """One attempt at one episode."""

    RUNNING = "running"  # the sampler is playing it
    COMPLETED = "completed"  # played to its end, not scored yet
    SCORED = "scored"  # has its score, waits for its group
    READY = "ready"  # its record_data is written
    FAILED = "failed"  # the infrastructure failed; `error` says how
    ABANDONED = "abandoned"  # lost its lease, or settlement dropped it; `reason` says why


class DispatchStatus(StrEnum):
    """One request to the engine and its answer."""

    PENDING = "pending"  # written, not sent
    RUNNING = "running"  # sent to the engine
    COMPLETED = "completed"  # answered, tools called
    FAILED = "failed"  # the engine failed it
    TOOL_FAILED = "toolfailed"  # a tool server died or timed out, or its result could not be summarized
    FORMAT_ERROR = "formaterror"  # the reply's tool calls could not be parsed; the model was told
    REPEAT_ERROR = "repeaterror"  # the reply repeats itself or an earlier one
    CANCELLED = "cancelled"  # the episode was cancelled
    DROPPED = "dropped"  # answered, but no part of the training data


class BranchCause(StrEnum):
    """How a request's tokens relate to those of the request before it."""

    CLEAN = "clean"  # they continue them (or it is the first)
    TEMPLATE_REWRITE = "template_rewrite"  # the chat template shows older turns differently now
    CONTEXT_POLICY = "context_policy"  # the sampler itself began another history


class DataStatus(StrEnum):
    """One record's training data."""

    READY = "ready"  # may be claimed by the trainer
    TRAINED = "trained"  # used `max_trained_count` times
    STALE = "stale"  # too old when it was looked at; kept, counted, never trained
    DROPPED = "dropped"  # left out by a rule of settlement; `reason` says which


class ServiceStatus(StrEnum):
    """One inference engine."""

    UP = "UP"  # takes requests
    DOWN = "DOWN"  # does not answer
    UPDATING = "UPDATING"  # paused for new weights; it takes requests, and answers them afterwards
    DRAINING = "DRAINING"  # ends what it was sent, to take new weights then; it takes no requests until it is UP


class OfferState(StrEnum):
    """A broadcast of one policy version to engines."""

    OPEN = "open"  # engines may join
    SENDING = "sending"  # who is in is settled, and so are the ranks
    SENT = "sent"
    FAILED = "failed"  # a member ended or stood still; the members load the version from disk
    UNUSED = "unused"  # no engine joined in time


class RunState(StrEnum):
    """Whether a run goes on: a pause is a person's word (`tandem pause`, `tandem resume`), the rest that of its trainers."""

    RUNNING = "running"  # samplers may claim, trainers may begin steps
    PAUSED = "paused"  # no slot is claimed and no step begun; what runs goes on to its end
    ENDED = "ended"  # every policy's trainer has ended of its own will (`Run.ends`); the next start of one: running


class Termination(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"  # the model replied without a tool call
    TURNS_LIMIT = "turns_limit"  # `max_turns` replies
    LENGTH_LIMIT = "length_limit"  # a reply or the context reached its token budget
    REPETITION = "repetition"  # a reply repeats itself or earlier ones, `repetition_early_stop_times` times
    TIME_LIMIT = "time_limit"  # `episode_timeout_s` passed
    TOOL_FAILURE = "tool_failure"  # a tool server failed: infrastructure
    TOOL_SERVER_AWAY = "tool_server_away"  # one was away or busy: the slot was given back, which cost no attempt
    ENGINE_FAILURE = "engine_failure"  # no engine answered: infrastructure
    SCORER_FAILURE = "scorer_failure"  # the scorer crashed: infrastructure
    AGENT_FAILURE = "agent_failure"  # no model of the browse or the scorer agent answered: infrastructure
    NOT_STORABLE = "not_storable"  # what came from outside made a document that MongoDB does not take
    MISCONFIGURED = (
        "misconfigured"  # the task or the run asks for what is not there: a tool, a scorer, a template that takes it
    )
    CANCELLED = "cancelled"  # drained, or the lease was lost


RECORD_MOVES: dict[RecordStatus, frozenset[RecordStatus]] = {
    RecordStatus.RUNNING: frozenset(
        {RecordStatus.COMPLETED, RecordStatus.SCORED, RecordStatus.FAILED, RecordStatus.ABANDONED}
    ),
    RecordStatus.COMPLETED: frozenset({RecordStatus.SCORED, RecordStatus.FAILED, RecordStatus.ABANDONED}),
    RecordStatus.SCORED: frozenset({RecordStatus.READY, RecordStatus.ABANDONED}),
    RecordStatus.READY: frozenset(),
    RecordStatus.FAILED: frozenset(),
    RecordStatus.ABANDONED: frozenset(),
}

DATA_MOVES: dict[DataStatus, frozenset[DataStatus]] = {
    DataStatus.READY: frozenset({DataStatus.TRAINED, DataStatus.STALE, DataStatus.DROPPED}),
    DataStatus.TRAINED: frozenset({DataStatus.READY}),  # a resume gives back what later steps had used
    DataStatus.STALE: frozenset({DataStatus.READY}),  # likewise
    DataStatus.DROPPED: frozenset(),
}


def origins(moves: Mapping[Status, frozenset[Status]], to: Status) -> list[str]:
    """States from which `to` may be reached: the filter of the verb that moves there."""
    return [state.value for state, nexts in moves.items() if to in nexts]
