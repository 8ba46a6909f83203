"""The seats of an episode. An actor is a seat at the table, a policy is weights. Guide: docs/bring/actors.md.

    kind      setting                      label: the policy of its turns     its turns are trained
    trained   {policy: main}               main                               by the policy's trainer
    frozen    {policy: main, at: frozen}   main@frozen                        never
    pinned    {policy: main, at: 40}       main@40                            never
    API       {model: judge-api}           model:judge-api                    never

A dispatch stores the label as its policy. No trainer has a label as its policy, since `@` and `:` are in no policy's name: so no
process, of this version or an earlier one, trains what a seat that is not trained said.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from shared.documents.base import Document
from shared.names import PolicyName, check_name

FROZEN: Literal["frozen"] = "frozen"
MODEL = "model:"
AT = "@"


def _actor(name: str) -> str:
    return check_name("actor", name)


def _model(name: str) -> str:
    return check_name("model", name)


def _is_none(value: object) -> bool:
    return value is None


ActorName = Annotated[str, AfterValidator(_actor)]
ModelName = Annotated[str, AfterValidator(_model)]  # among `players` of the agent config file


class Actor(BaseModel, frozen=True, extra="forbid"):
    """Who takes a seat: a policy, at its newest weights unless `at` says otherwise, or an API model."""

    policy: PolicyName | None = Field(None, exclude_if=_is_none)
    at: Annotated[int, Field(ge=0, strict=True)] | Literal["frozen"] | None = Field(None, exclude_if=_is_none)
    model: ModelName | None = Field(None, exclude_if=_is_none)
    system: str | None = Field(None, exclude_if=_is_none)  # None: the task's system prompt, or the sampler's

    @model_validator(mode="after")
    def is_a_policy_or_a_model(self) -> Self:
        if (self.policy is None) == (self.model is None):
            raise ValueError("expected one of policy (weights of this run) and model (of the agent config file)")
        if self.model is not None and self.at is not None:
            raise ValueError(f"model {self.model!r} has no versions; leave out at, or name a policy")
        return self

    @property
    def label(self) -> str:
        if self.model is not None:
            return f"{MODEL}{self.model}"
        return str(self.policy) if self.at is None else f"{self.policy}{AT}{self.at}"


def trains(label: str) -> bool:
    """Whether turns of this label may become training data: it is a policy's name alone."""
    return AT not in label and not label.startswith(MODEL)


def model_of(label: str) -> str | None:
    """The API model of the label; None: weights of the run."""
    return label.removeprefix(MODEL) if label.startswith(MODEL) else None


def weights_of(label: str) -> tuple[str, int | None]:
    """The policy of a label, and the version that alone may answer; None: the one that its engines serve."""
    policy, _, at = label.partition(AT)
    return policy, int(at) if at.isdigit() else None


def seat_of(thread: str | None) -> str:
    """The seat whose thread it is: a seat's further conversations are called `SEAT#…`."""
    return (thread or "").partition("#")[0]


class Seated(Document):
    """One seat of a played episode: who took it, and how it went. `policy`: the label of its turns."""

    actor: str
    policy: str
    turns: int = 0
    versions: list[int] = []
    score: float | None = None  # its own, where the scorer gave one
