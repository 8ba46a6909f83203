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


# Sets of task states that queries use.
CLAIMABLE = [TaskStatus.CREATED.value, TaskStatus.RUNNING.value]  # may have a free slot
OPENED = [TaskStatus.RUNNING.value, TaskStatus.COMPLETED.value]  # in progress, not yet settled
UNENDED = [TaskStatus.CREATED.value, *OPENED]  # may still become training data
OVER = [
    TaskStatus.SETTLED.value,
    TaskStatus.ABANDONED.value,
    TaskStatus.SKIPPED.value,
]  # final
PLAYED = [
    TaskStatus.COMPLETED.value,
    TaskStatus.SETTLED.value,
    TaskStatus.ABANDONED.value,
]  # every slot is scored or failed
DECIDED = [TaskStatus.SETTLED.value, TaskStatus.ABANDONED.value]  # by settlement: with training data, or without
DATALESS = [TaskStatus.ABANDONED.value, TaskStatus.SKIPPED.value]  # over, and never training data
NEVER_OPENED = [TaskStatus.CREATED.value, TaskStatus.SKIPPED.value]  # no slot was claimed


class SlotStatus(StrEnum):
    """One episode of a task's group."""

    OPEN = "open"  # may be claimed once `free_at` has passed
    LEASED = "leased"  # a worker plays it until `free_at`
    WAITING = "waiting"  # played to its end; waits for feedback until `free_at`; without a lease
    SCORED = "scored"  # has its score; final
    FAILED = "failed"  # infrastructure failed too often, or no feedback came; has no score; final


class RecordStatus(StrEnum):
    """One attempt at one episode."""

    RUNNING = "running"  # the sampler is playing it
    COMPLETED = "completed"  # played to its end, not scored yet: waits for feedback
    SCORED = "scored"  # scored, waits for its group
    READY = "ready"  # its record_data is written
    FAILED = "failed"  # infrastructure failure; see `error`
    ABANDONED = "abandoned"  # lost its lease, or dropped in settlement; see `reason`


class DispatchStatus(StrEnum):
    """One request to the engine and its answer."""

    PENDING = "pending"  # written, not sent
    RUNNING = "running"  # sent to the engine
    COMPLETED = "completed"  # answered, tools called
    FAILED = "failed"  # the engine failed it
    TOOL_FAILED = "toolfailed"  # a tool server crashed or timed out, or its result could not be summarized
    FORMAT_ERROR = "formaterror"  # the reply's tool calls could not be parsed; the model received the error
    REPEAT_ERROR = "repeaterror"  # the reply repeats itself or an earlier one
    CANCELLED = "cancelled"  # the episode was cancelled


class BranchCause(StrEnum):
    """How a request's tokens relate to the previous request of its thread, and why."""

    CLEAN = "clean"  # they extend them, or this is the first request
    TEMPLATE_REWRITE = "template_rewrite"  # the chat template now renders older turns differently
    CONTEXT_POLICY = "context_policy"  # the sampler started another history
    THREAD = "thread"  # the first request of a further thread, which shares a part of an earlier request


class ParentKind(StrEnum):
    """How a request's tokens relate to its parent: the recorded request of its policy that shares the longest prefix."""

    BRIDGE = "bridge"  # the parent's whole prompt and reply, and what the template adds
    FORK = "fork"  # a part of the parent's prompt and reply
    ROOT = "root"  # nothing: it has no parent


class DataStatus(StrEnum):
    """One record's training data."""

    READY = "ready"  # may be claimed by the trainer
    TRAINED = "trained"  # used `max_trained_count` times
    STALE = "stale"  # exceeded the staleness limit; kept, counted, never trained
    DROPPED = "dropped"  # excluded by a settlement rule; see `reason`


class ServiceStatus(StrEnum):
    """One inference engine."""

    UP = "UP"  # takes requests
    DOWN = "DOWN"  # does not answer
    UPDATING = "UPDATING"  # paused to load weights; accepts requests and answers them afterwards
    DRAINING = "DRAINING"  # finishes its requests before it loads weights; accepts none until it is UP
    ASLEEP = "ASLEEP"  # has released its memory to a trainer on the same device; accepts none until it is UP


class LeaseKind(StrEnum):
    """What is leased."""

    GPU = "gpu"  # a device, or several, that engines and a trainer use by turns


class LeaseState(StrEnum):
    """One device. WANTED and HELD end by themselves at `free_at`."""

    FREE = "free"  # engines may use it
    WANTED = "wanted"  # claimed: engines release their memory, and none begins to use it
    HELD = "held"  # every engine has released its memory: the holder computes


class OfferState(StrEnum):
    """A broadcast of one policy version to engines."""

    OPEN = "open"  # engines may join
    SENDING = "sending"  # members and ranks are fixed
    SENT = "sent"
    FAILED = "failed"  # a member exited or stalled; members load the version from disk
    UNUSED = "unused"  # no engine joined in time


class RunState(StrEnum):
    """State of a run: users pause and resume it (`tandem pause`, `tandem resume`), trainers end it."""

    RUNNING = "running"  # samplers may claim, trainers may begin steps
    PAUSED = "paused"  # no slot is claimed and no step begun; work in progress is finished
    ENDED = "ended"  # every policy's trainer has finished (`Run.ends`); the next trainer start sets RUNNING


class Termination(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"  # the model replied without a tool call
    TURNS_LIMIT = "turns_limit"  # `max_turns` replies
    LENGTH_LIMIT = "length_limit"  # a reply or the context reached its token budget
    IMAGE_TOKEN = "image_token"  # the model wrote the token that stands for an image, which no later prompt may have
    REPETITION = "repetition"  # a reply repeats itself or earlier ones, `repetition_early_stop_times` times
    REPLY_REJECTED = "reply_rejected"  # the agent failed because of the model's reply: scored
    TIME_LIMIT = "time_limit"  # `episode_timeout_s` passed
    TOOL_FAILURE = "tool_failure"  # a tool server failed: infrastructure
    TOOL_SERVER_AWAY = "tool_server_away"  # a server was unavailable or busy: the slot was released at no cost
    ENVIRONMENT_FAILURE = "environment_failure"  # an environment, or its service, failed: infrastructure
    ENVIRONMENT_BUSY = "environment_busy"  # no service had room: the slot was released at no cost
    ENGINE_FAILURE = "engine_failure"  # no engine answered: infrastructure
    SCORER_FAILURE = "scorer_failure"  # the scorer crashed: infrastructure
    AGENT_CRASHED = "agent_crashed"  # the agent that plays through the gateway crashed: infrastructure
    AGENT_FAILURE = "agent_failure"  # no model of the browse or scorer agent answered: infrastructure
    NOT_STORABLE = "not_storable"  # external content made a document that MongoDB rejects
    MISCONFIGURED = "misconfigured"  # the task or run needs a missing tool, scorer or chat template feature
    UNFORESEEN = "unforeseen"  # something raised what nobody expected: a bug of the program or of a user's code
    VERSION_AWAY = (
        "version_away"  # no engine serves a pinned actor's version: no cost, but in an evaluation of a version
    )
    CANCELLED = "cancelled"  # sampler drained, or lease lost


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
    DataStatus.TRAINED: frozenset({DataStatus.READY}),  # a resume makes data of later steps available again
    DataStatus.STALE: frozenset({DataStatus.READY}),  # likewise
    DataStatus.DROPPED: frozenset(),
}


def origins(moves: Mapping[Status, frozenset[Status]], to: Status) -> list[str]:
    """States from which `to` may be reached: the filter of the verb that makes the move."""
    return [state.value for state, nexts in moves.items() if to in nexts]
