"""Documents about published weights, the run itself, engines and processes. (Training data: `shared.documents.data`.)"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from shared.documents.base import SCHEMA_VERSION, Document
from shared.documents.offers import BroadcastOffer
from shared.documents.states import RunState, ServiceStatus
from shared.documents.step_cost import StepCost

HEARTBEAT_S = 2.0  # default period of a process
FIRST_VERSION = 0  # the initial weights, to which published adapters belong
VersionKind = Literal["full", "delta", "adapter"]


class FileEntry(TypedDict):
    """One file of a manifest."""

    sha256: str
    bytes: int


def _by_name(given: Any) -> Any:
    """Accepts the form of earlier versions too: {name: {"sha256", "bytes"}}."""
    if not isinstance(given, list):
        return given
    try:
        return {one["name"]: {"sha256": one["digest"], "bytes": one["bytes"]} for one in given}
    except (KeyError, TypeError) as exc:
        raise ValueError(f"a file lacks {exc}; expected name, digest and bytes") from exc


def _listed(files: dict[str, FileEntry] | None) -> list[dict[str, Any]] | None:
    if files is None:
        return None
    return [{"name": name, "digest": entry["sha256"], "bytes": entry["bytes"]} for name, entry in files.items()]


# In MongoDB a list of {"name", "digest" (sha256), "bytes"}: a file's name has a dot, with which no filter can name a field.
StoredFiles = Annotated[dict[str, FileEntry], BeforeValidator(_by_name), PlainSerializer(_listed)]
StoredFilesIfAny = Annotated[dict[str, FileEntry] | None, BeforeValidator(_by_name), PlainSerializer(_listed)]


class PolicyVersion(Document):
    """Published weights. A resume from an older step withdraws later versions: `withdrawn_to` is that step.

    `files` describes the complete directory. If `kind` is "full", `path` contains it. If `base` is set, `path` also contains
    the difference to that version: the changed bytes (`shared.weights.deltas`) or an adapter (`shared.weights.adapters`).
    `shared.weights.assembly` builds the same directory from either.
    """

    collection: ClassVar[str] = "policy_versions"
    id: str = Field(alias="_id")
    policy: str
    version: int  # grows with every publication, never reused
    step: int  # optimizer steps that produced these weights
    kind: VersionKind = "full"
    path: str
    files: StoredFiles
    base: int | None = None
    delta: FileEntry | None = None  # the file with the changes since `base`
    adapter: StoredFilesIfAny = None  # the files of the adapter of `base`
    offer: BroadcastOffer | None = None  # broadcast of the same bytes to engines that join in time
    source: str | None = Field(  # URL at which the trainer's machine serves its files in chunks
        None,
        exclude_if=lambda source: source is None,  # processes of earlier versions refuse the field
    )
    trainer_generation: int = 0  # of the trainer that announced it; 0: no trainer, as for version 0
    withdrawn_to: int | None = None
    pruned: bool = False  # its files are deleted
    created_at: datetime | None = None

    @property
    def bytes_from_base(self) -> int:
        """Bytes of the files that turn `base` into this version; 0 without a base."""
        return sum(entry["bytes"] for entry in [*([self.delta] if self.delta else []), *(self.adapter or {}).values()])

    def staleness(self, step: int) -> int:
        """Optimizer steps between these weights and those after `step` steps, counted through the fork of their histories."""
        if self.withdrawn_to is None:
            return step - self.step
        fork = min(self.withdrawn_to, step)
        return (self.step - fork) + (step - fork)


class Admission(Document):
    """The trainer's off-policy budget, which bounds how far ahead samplers may open tasks; see `store.admission`."""

    groups_per_step: int
    max_staleness: int
    num_steps: int | None = None  # tasks beyond the last step's are never opened; None: no end

    def groups_after(self, step: int) -> int:
        """How many may be opened that the weights of `step` were not trained on."""
        steps = 1 + self.max_staleness
        if self.num_steps is not None:
            steps = max(0, min(steps, self.num_steps - step))
        return steps * self.groups_per_step


class SavedCheckpoint(Document):
    """The newest checkpoint of a policy's trainer: nothing older is a continuation."""

    step: int
    folder: str  # where its checkpoints lie


def step_id(policy: str, step: int, trainer_generation: int) -> str:
    return f"{policy}:{step}:{trainer_generation}"


def survives(step: int, trainer_generation: int, starts: Sequence[int]) -> bool:
    """Whether a step is part of the weights: no later start began before it. `starts`: the step that each one began from."""
    return all(began_from >= step for began_from in starts[trainer_generation:])


class TrainedStep(Document):
    """What one optimizer step was computed from, as the trainer says it. The audit compares it with the marks on the data."""

    collection: ClassVar[str] = "trained_steps"

    id: str = Field(alias="_id")  # policy:step:trainer_generation
    policy: str
    step: int
    trainer_generation: int
    groups: list[tuple[str, int]]  # (task, how many of its records)
    metrics: dict[str, float | None] = {}  # what the trainer logged of it (bounded); None: no finite number
    created_at: datetime | None = None

    def survives(self, starts: Sequence[int]) -> bool:
        """Whether it is part of the weights. `starts`: the step that each start of the trainer began from."""
        return survives(self.step, self.trainer_generation, starts)


class TrainerEnd(Document):
    """How a trainer ended of its own will: its last write. One that was killed, or failed, has none."""

    trainer_generation: int
    step: int  # the last one that it took
    reason: str
    used_up: bool = Field(  # before its last step, since no task could give data any more: more tasks continue it
        False,
        exclude_if=lambda used_up: not used_up,  # processes of earlier versions refuse the field
    )
    ended_at: datetime | None = None


class StoredSettings(Document):
    """What a service ran with, resolved, under the run's rules and without secrets: one document for each that was different."""

    collection: ClassVar[str] = "settings"
    id: str = Field(alias="_id")  # kind:hash of its values
    kind: str  # sampler, keeper, trainer-POLICY
    values: dict[str, Any]
    workers: list[str]  # that had them, as `workers` and `records` name them; of very many the last ones
    created_at: datetime | None = None


class Run(Document):
    """The run itself: one document, `_id` = "run"."""

    collection: ClassVar[str] = "runs"
    id: str = Field(alias="_id")
    name: str
    schema_version: int = SCHEMA_VERSION
    state: RunState = RunState.RUNNING
    admission: dict[str, Admission] = {}  # by policy
    trainer_generations: dict[str, int] = {}  # trainer starts, by policy: the fencing token of claims and commits
    starts: dict[str, list[int]] = {}  # by policy: the step that each of them began from
    checkpoints: dict[str, SavedCheckpoint] = {}  # by policy
    ends: dict[str, TrainerEnd] = {}  # by policy: of the last start of its trainer, once that has ended
    step_costs: dict[str, StepCost] = Field(  # by policy, as the launcher measured them; runs without it have none
        {},
        exclude_if=lambda costs: not costs,  # processes of earlier versions refuse the field
    )
    settings: dict[str, str] = {}  # of each kind of service the last start's, by their id in `settings`
    created_at: datetime | None = None


class InferenceService(Document):
    """One engine that a keeper looks after."""

    collection: ClassVar[str] = "inference_services"
    id: str = Field(alias="_id")  # its url; of one that serves adapters, the url and what is served there
    url: str
    policy: str
    version: int
    adapter: str | None = Field(  # the name of `version` in requests; None: the engine's own weights are `version`
        None,
        exclude_if=lambda adapter: adapter is None,  # processes of earlier versions refuse the field
    )
    follow_every: int = 1  # versions from one update to the next; above 1 it is a "lagging" one
    serve_version: int | None = Field(  # the only version that it serves, for pinned actors; None: it follows
        None,
        exclude_if=lambda version: version is None,  # processes of earlier versions refuse the field
    )
    status: ServiceStatus
    kind: str = "sglang"
    dtype: str | None = Field(  # in which it computes, as it says: `bfloat16`; None: it does not say
        None,
        exclude_if=lambda dtype: dtype is None,  # processes of earlier versions refuse the field
    )
    capacity: int = 0  # requests it runs at once
    running: int = 0
    waiting: int = 0
    token_usage: float = 0.0  # share of its KV cache in use
    context: int | None = Field(  # tokens of a request, its reply included, that it takes; None: it does not say
        None,
        exclude_if=lambda context: context is None,  # processes of earlier versions refuse the field
    )
    broadcast_ranks: int = 0  # processes with which it would join a broadcast of weights; 0: it loads from disk alone
    weights_url: str | None = Field(  # where its keeper serves the weights that it has pulled, and those it is pulling
        None,
        exclude_if=lambda url: url is None,  # processes of earlier versions refuse the field
    )
    keeper: str | None = None
    error: str | None = None
    needs_full_weights: int | None = (
        None  # the version that could not be put together: a full one at or after it would help
    )
    heartbeat_s: float = 1.0  # how often its keeper means to be heard of
    heartbeat: datetime | None = None


class EnvironmentService(Document):
    """One `python -m sampler.environments` that serves sessions of environments."""

    collection: ClassVar[str] = "environment_services"
    id: str = Field(alias="_id")  # its url
    url: str  # base of the controller protocol, such as http://host:5020/api
    kinds: list[str]  # names of its environments
    capacity: int  # sessions that it plays at once
    running: int = 0
    starting: int = 0
    version: str = ""  # of the program
    host: str = ""
    pid: int = 0
    heartbeat_s: float = HEARTBEAT_S  # how often it means to be heard of
    heartbeat: datetime | None = None


class Worker(Document):
    """Any process of the run."""

    collection: ClassVar[str] = "workers"
    id: str = Field(alias="_id")
    kind: str
    host: str
    pid: int
    doing: str = ""
    stats: dict[str, Any] = {}
    alarms: list[str] = []  # what is wrong now, each with a sentence of advice
    heartbeat_s: float = HEARTBEAT_S  # how often it means to be heard of
    started_at: datetime | None = None
    heartbeat: datetime | None = None
