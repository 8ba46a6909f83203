"""The documents of a run's data, in the order of their creation. Field names are what people read in Compass.

    Task ──slot──▶ Record ──turn──▶ DispatchedSamplingTask ──settle──▶ DBRecordData ──step──▶ PolicyVersion
                                                       (versions, run, services, workers: `shared.documents.run`)

Ids are derived from the thing they name, so that every write may be repeated:

    task      "policy:split:epoch:tid"           main:train:0:arith-00017
    record    "task:traj_id:attempt"             main:train:0:arith-00017:3:1
    dispatch  "record:index"                     main:train:0:arith-00017:3:1:0
    data      "record"; for a policy other than the task's: "record:policy"
    version   "policy:version"                   main:12

Times are UTC datetimes set by the server (`$$NOW`). Token arrays are packed binaries (`shared.documents.packed`) with readable
text next to them, and each is stored once: in the dispatch that sampled it.
"""

from datetime import datetime
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from shared.documents.actors import Actor, ActorName, Seated
from shared.documents.agent_sessions import AgentSession, ClientRequest
from shared.documents.agent_use import AgentUse
from shared.documents.base import Document
from shared.documents.data_parts import DataClaim, DataDispatch
from shared.documents.feedback import MAX_DEADLINE_S, Feedback, ScoreWithoutFeedback
from shared.documents.fork import ForkOrigin
from shared.documents.images import PlacedImage
from shared.documents.replies import SampledResponse, SampledTokens, ToolCallResult
from shared.documents.routed_experts import RoutedExperts
from shared.documents.scoring import MAX_SCORERS, GroupScore, Scoring, WeightedScorer
from shared.documents.states import (
    BranchCause,
    DataStatus,
    DispatchStatus,
    RecordStatus,
    SlotStatus,
    TaskStatus,
)
from shared.documents.unforeseen import Unforeseen
from shared.names import SamplerName
from shared.scores import LARGEST_SCORE


class TaskPayload(Document):
    """The content of one line of a task file."""

    query: str  # of `query_blocks` the texts
    query_blocks: list[dict[str, Any]] = Field(  # texts and references to images (`shared.documents.content`)
        [],
        exclude_if=lambda blocks: not blocks,  # processes of earlier versions refuse the field
    )
    answer: str | list[str] | None = None  # any answer of a list is right
    sampler: SamplerName | None = Field(  # who plays it, by name; None: the process's own
        None,
        exclude_if=lambda name: name is None,  # processes of earlier versions refuse the field
    )
    scorer: str | None = None  # None, and no `scorers`: the sampler's default
    scorers: list[WeightedScorer] = Field(  # several, by weight, in place of `scorer`
        [],
        max_length=MAX_SCORERS,
        exclude_if=lambda scorers: not scorers,  # processes of earlier versions refuse the field
    )
    answer_schema: Literal["answer", "boxed"] = "answer"
    tools: list[str] | None = None  # names or patterns; None: every tool that the servers offer
    exclude_tools: list[str] = []  # names or patterns; wins over `tools`
    system: str | None = None
    max_turns: int | None = Field(None, gt=0, strict=True)  # None: the sampler's
    temperature: float | None = Field(None, ge=0, strict=True)  # None: the sampler's setting for training or evaluation
    feedback_deadline_s: float | None = Field(None, ge=0, le=MAX_DEADLINE_S, strict=True)  # None: the sampler's
    agent_crash: Literal["auto", "retry", "score"] | None = Field(None, exclude_if=lambda rule: rule is None)
    agent_crash_score: float | None = Field(
        None, allow_inf_nan=False, ge=-LARGEST_SCORE, le=LARGEST_SCORE, exclude_if=lambda score: score is None
    )
    min_pass_rate: float | None = Field(None, ge=0, le=1, strict=True)  # the curriculum: `store.tasks.skip_next_epoch`
    max_pass_rate: float | None = Field(None, ge=0, le=1, strict=True)
    actors: dict[ActorName, Actor] = Field(
        {}, exclude_if=lambda value: not value
    )  # added to the sampler's; one of the same name replaces it
    rounds: str | None = Field(None, exclude_if=lambda found: found is None)  # who speaks when; None: the sampler's
    lineups: list[dict[ActorName, ActorName]] = Field([], exclude_if=lambda value: not value)  # empty: the sampler's
    metadata: dict[str, Any] = {}
    fork: ForkOrigin | None = Field(None, exclude_if=lambda fork: fork is None)  # only of tasks of split `fork`

    @property
    def accepted(self) -> tuple[str, ...]:
        """The right answers; () if the task has none."""
        if self.answer is None:
            return ()
        return (self.answer,) if isinstance(self.answer, str) else tuple(self.answer)

    @property
    def scorer_names(self) -> tuple[str, ...]:
        """The scorers that it names."""
        return tuple(one.name for one in self.scorers) or ((self.scorer,) if self.scorer is not None else ())

    @property
    def has_pass_band(self) -> bool:
        return self.min_pass_rate is not None or self.max_pass_rate is not None


class Slot(Document):
    """One episode of a task's group. `attempt` is the fencing token: every later write of the episode names it."""

    traj_id: int
    status: SlotStatus = SlotStatus.OPEN
    worker: str | None = None
    free_at: (
        datetime  # the next time it may be claimed: lease end, retry delay or schedule; of a waiting one: the deadline
    )
    attempt: int = 0  # incremented by every claim
    failures: int = 0  # attempts that ended in an infrastructure failure or an expired lease
    unconfirmed: bool = (
        Field(  # claimed for an agent elsewhere that may not know of it: no failure if its lease expires
            False,
            exclude_if=lambda unconfirmed: not unconfirmed,  # processes of earlier versions refuse the field
        )
    )
    record_id: str | None = None
    score: float | None = None
    score_without_feedback: float | None = (
        None  # of an episode that waits, or waited, for feedback; None: fails without
    )
    feedback: list[Feedback] = []
    group_scorers: list[WeightedScorer] = Field(  # which its score still needs when the group is complete
        [],
        exclude_if=lambda scorers: not scorers,  # processes of earlier versions refuse the field
    )
    error: str | None = None


# 28 fields: one document: what decides who may claim it is read and written at once
class Task(Document):
    """One question, answered by a group of `num_generations` episodes. Contains all group state: a verb is one atomic update."""

    collection: ClassVar[str] = "tasks"
    id: str = Field(alias="_id")
    tid: str
    split: str
    epoch: int
    policy: str
    seq: int  # order in which tasks may be opened, per policy and split
    source: str
    at_version: int | None = None  # only engines that serve this version play it (evaluation); None: any engine
    payload: TaskPayload
    num_generations: int
    status: TaskStatus = TaskStatus.CREATED
    rules: int | None = Field(None, exclude_if=lambda number: number is None)  # number of those that settle it
    slots: list[Slot]
    last_claimed: int | None = None  # first slot that the last claim leased; -1: it found only exhausted slots
    last_claims: list[int] = Field([], exclude_if=lambda slots: not slots)  # all of them, where it leased several
    scores: list[float | None] = []  # by slot, after settlement; None: failed
    free_at: datetime  # earliest of its open and leased slots; used by the claim's index
    waiting_until: datetime | None = None  # earliest deadline of its slots that wait for feedback
    scoring: Scoring | None = Field(None, exclude_if=lambda one: one is None)  # by group scorers, under way or failed
    group_scores: list[GroupScore] = Field(
        [], exclude_if=lambda scores: not scores
    )  # written once; part of the slots' scores
    unforeseen: Unforeseen | None = Field(None, exclude_if=lambda one: one is None)  # bugs that it met
    data_of: list[str] = []  # policies for which settlement wrote training data
    # Result of settlement: "ready" (and how many were dropped), "evaluated", or the reason for abandoning it.
    outcome: str | None = None
    settler: str | None = None
    created_at: datetime | None = None
    completed_at: datetime | None = None
    settled_at: datetime | None = None


def task_id(policy: str, split: str, epoch: int, tid: str) -> str:
    return f"{policy}:{split}:{epoch}:{tid}"


def data_id(record: str, policy: str, owner: str) -> str:
    """Id of a record's training data for `policy`; `owner` is the task's policy."""
    return record if policy == owner else f"{record}:{policy}"


def record_id(task: str, traj_id: int, attempt: int) -> str:
    return f"{task}:{traj_id}:{attempt}"


def task_of(record: str) -> str:
    """The id of the task whose episode the record is."""
    return record.rsplit(":", 2)[0]


class Claim(Document):
    """A worker's lease on one slot. Not stored; every write of the episode carries it."""

    task: Task
    traj_id: int
    attempt: int

    @property
    def record_id(self) -> str:
        return record_id(self.task.id, self.traj_id, self.attempt)


# 34 fields: one document: its end is written at once
class Record(Document):
    """One attempt at one episode."""

    collection: ClassVar[str] = "records"
    id: str = Field(alias="_id")
    task: str
    traj_id: int
    attempt: int
    tid: str
    split: str
    policy: str
    source: str
    worker: str
    status: RecordStatus = RecordStatus.RUNNING
    traj: list[str] = []  # its dispatches in order
    num_turns: int = 0
    num_tokens: int = 0  # sampled by the engine
    termination: str | None = None
    answer: str | None = None
    score: float | None = None
    policy_scores: dict[str, float] = {}  # of other participating policies, if different
    reward_details: dict[str, Any] = {}
    without_feedback: ScoreWithoutFeedback | None = None  # its score if it waits for feedback and none comes
    metrics: dict[str, float] = {}  # sampler-defined; the trainer averages them by source
    advantage: float | None = None  # mean over its dispatches
    error: str | None = None
    traceback: str | None = Field(None, exclude_if=lambda text: text is None)  # of an error that nobody foresaw
    reason: str | None = None  # why settlement dropped it or excluded it from the loss
    policy_versions: list[int] = []  # versions of its own policy that sampled its tokens
    other_policy_versions: dict[str, list[int]] = {}  # the same for other participating policies
    trained_count: int = 0
    last_trained_step: int | None = None
    revision: int = 0  # of the marks above; see `DBRecordData.revision`
    session: AgentSession | None = None  # None: a sampler plays it
    actors: dict[str, Seated] = Field({}, exclude_if=lambda value: not value)  # by seat, of an episode that actors play
    created_at: datetime | None = None
    finished_at: datetime | None = None

    @classmethod
    def of(cls, claim: Claim, worker: str, session: AgentSession | None = None) -> Self:
        """The new record of a claimed slot."""
        return cls(
            id=claim.record_id,
            task=claim.task.id,
            traj_id=claim.traj_id,
            attempt=claim.attempt,
            tid=claim.task.tid,
            split=claim.task.split,
            policy=claim.task.policy,
            source=claim.task.source,
            worker=worker,
            session=session,
        )

    def includes(self, dispatch: str) -> bool:
        """Whether the request is part of the episode, which has ended. Of an agent elsewhere, one may have been written in the
        moment in which its attempt ended; it was never asked."""
        return self.session is None or dispatch in self.traj


# 32 fields: one document: a request and its reply, written at once
class DispatchedSamplingTask(Document):
    """One request to the engine and its answer.

    Its prompt is the first `shared_length` tokens of the parent's prompt + response, then `prompt_ids`; so storage grows
    linearly with the turns of an episode. The parent is any earlier request of the same policy that was answered.
    `messages` holds only those that are new in the thread. A field that is not stored has its default.
    """

    collection: ClassVar[str] = "dispatched_sampling_tasks"
    id: str = Field(alias="_id")
    record: str
    policy: str | None = None  # policy that took this turn, or a seat's label (`actors.py`); None: the record's
    thread: str | None = None  # conversation of the policy; None: its main one
    turn: int
    while_open: list[int] = []  # turns of other threads without a reply when this one was asked
    parent: str | None
    shared_length: int
    branch_cause: BranchCause = BranchCause.CLEAN
    prompt_ids: bytes
    images: list[PlacedImage] = []  # in `prompt_ids`, in their order
    messages: list[dict[str, Any]]
    tools_hash: str  # of `shared.documents.tool_schemas`; empty: no tools
    sampling_params: dict[str, Any]
    service: str | None = None  # URL of the engine that finished the reply
    engines: list[tuple[str, int]] = []  # (URL, tokens) of a reply that several sampled; []: `service` alone
    sampled_by: str | None = None  # policy whose engine sampled this turn; None: `policy` itself
    client: ClientRequest | None = None  # the agent's request, of an episode played through the gateway
    played_by: AgentUse | None = None  # the API model that took this turn; it has no token ids
    response: SampledResponse | None = None
    weight_versions: list[tuple[int, int]] = []  # run lengths: (version, tokens)
    tool_calls: list[ToolCallResult] = []
    status: DispatchStatus = DispatchStatus.PENDING
    error: str | None = None  # why it failed; for a format error, the message that the model received
    continuations: int = 0  # continuations of the reply after aborts
    routed_experts: RoutedExperts | None = None  # that the engine chose, of a run with `router_replay`
    score: float | None = None  # this turn's share of the episode's score, if the sampler set one
    advantage: float | None = None
    usage: dict[str, int] = {}  # prompt, cached, completion
    created_at: datetime | None = None
    finished_at: datetime | None = None

    def to_mongo(self) -> dict[str, Any]:
        """Omits defaults: with 20 tokens a reply, names of empty fields would dominate storage."""
        return self.model_dump(by_alias=True, exclude_defaults=True) | {"status": self.status}


class DispatchTokens(Document):
    """The part of a dispatch from which its record's token tree is built: no text, messages or tool results."""

    collection: ClassVar[str] = "dispatched_sampling_tasks"
    id: str = Field(alias="_id")
    record: str
    turn: int
    parent: str | None
    shared_length: int
    prompt_ids: bytes
    images: list[PlacedImage] = []
    sampling_params: dict[str, Any]
    service: str | None = None
    engines: list[tuple[str, int]] = []
    sampled_by: str | None = None
    response: SampledTokens | None = None
    weight_versions: list[tuple[int, int]] = []
    routed_experts: RoutedExperts | None = None
    status: DispatchStatus


# 28 fields: one document: what the trainer streams, without a second read
class DBRecordData(Document):
    """One record as training data of `policy`: the token tree of `dispatches`, built by `shared.tokens.flatten`. If several
    policies took turns, each has its own document for its own conversation.

    The tokens stay in the dispatches. `digest` is the tree's at settlement; a tree with another digest is never trained.
    """

    collection: ClassVar[str] = "record_data"
    id: str = Field(alias="_id")
    record: str
    task: str
    group_size: int  # records of the group that are trained together; 0: settlement dropped this one
    seq: int
    policy: str
    split: str
    source: str
    min_version: int
    max_version: int
    versions: list[int] = []  # all that sampled a trained token
    num_tokens: int
    num_trained_tokens: int
    duration_s: float = 0.0  # from the record's start to its score
    reward: float  # the record's score
    metrics: dict[str, float] = {}  # the record's
    shaping: float = 0.0  # added to the reward before advantages are computed
    status: DataStatus = DataStatus.READY
    reason: str | None = None
    trained_count: int = 0
    trained_steps: list[int] = []
    last_trained_step: int | None = None
    revision: int = 0  # counts changes of the marks above; late writes of older revisions are ignored
    claim: DataClaim | None = None
    dispatches: list[DataDispatch]
    digest: str
    created_at: datetime | None = None
