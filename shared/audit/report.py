"""What the audit checks, and the report that its parts write into."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import ValidationError

from shared.documents.base import Document

MAX_EXAMPLES = 5
Model = TypeVar("Model", bound=Document)


class Check(StrEnum):
    """What must hold, as a person reads it in the table."""

    READABLE = "documents fit their model"
    ENDED = "every slot of an opened task is scored or failed"
    FAILED = "a failed slot has no score and no training data"
    RECORDS = "a slot's record exists, is its own, and carries its score"
    EVALUATED = "held-out episodes are of the version they judge, and no training data"
    ONCE = "no slot has two trained records, or two sets of training data for a policy"
    OWNED = "training data is that of a scored slot's own record"
    POLICIES = "each policy trains on its own turns"
    TOOLS = "the tools that a request names are stored, as it was told them"
    TOKENS = "trained tokens are those of the dispatches"
    SAMPLED = "sampled tokens in the tree are those of the engine's replies"
    LOGPROBS = "log-probs are those that the tokens were sampled with"
    VERSIONS = "weight versions are those that sampled the tokens"
    SUMMARY = "token counts and version bounds agree with the tree"
    STEPS = "trained_steps are unique and at most max_trained_count"
    MARKS = "records carry the marks of their own policy's training data"
    ACCOUNTS = "a step's mark is on what the step says that it trained, and on nothing else"
    SURVIVING = "no trained step is above the newest announced one"
    ADVANTAGES = "advantages are those on the dispatches, and a record's is their mean"
    DROPPED = "what settlement dropped has a reason and no advantage, and its record is abandoned"
    GROUPS = "a group's training data is whole"


@dataclass(slots=True)
class Result:
    """One row of the table. `note` says why something was not examined."""

    examined: int = 0
    violations: int = 0
    examples: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class AuditReport:
    """Results by check, and what the run's data adds up to."""

    run: str
    results: dict[Check, Result] = field(default_factory=lambda: {check: Result() for check in Check})
    counts: dict[str, int] = field(default_factory=dict)
    set_aside: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(result.violations for result in self.results.values())

    def look(self, check: Check, right: bool, text: str = "", *, n: int = 1) -> bool:
        """Count `n` things looked at; `text` says what was found and expected when they are not right. Returns `right`."""
        result = self.results[check]
        result.examined += n
        if not right:
            result.violations += 1
            if len(result.examples) < MAX_EXAMPLES:
                result.examples.append(text)
        return right

    def read(self, model: type[Model], document: Mapping[str, Any]) -> Model | None:
        """The document as its model; None, and a violation, when it does not fit."""
        try:
            read = model.model_validate(dict(document))
        except ValidationError as exc:
            first = exc.errors()[0]
            where = ".".join(map(str, first["loc"]))
            self.look(Check.READABLE, False, f"{model.__name__} {document['_id']}: {where}: {first['msg']}")
            return None
        self.look(Check.READABLE, True)
        return read

    def add(self, name: str, n: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    def to_json(self) -> dict[str, Any]:
        rows = {
            check.name.lower(): {
                "promise": check.value,
                "examined": r.examined,
                "violations": r.violations,
                "examples": r.examples,
                "note": r.note,
            }
            for check, r in self.results.items()
        }
        return {"run": self.run, "ok": self.ok, "checks": rows, "counts": self.counts, "set_aside": self.set_aside}
