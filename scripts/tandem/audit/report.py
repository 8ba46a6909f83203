"""The audit's checks and its report."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from shared.documents.base import Document

MAX_EXAMPLES = 5
Model = TypeVar("Model", bound=Document)


@cache
def _empty_defaults(model: type[Document]) -> dict[str, Any]:
    """Its fields that are an empty list or dictionary unless they are stored. Given to the validation, which copies each default
    anew otherwise, they take a fifth of the time of a dispatch."""
    fields = model.model_fields.items()
    return {field.alias or name: field.default for name, field in fields if field.default in ([], {})}


class Check(StrEnum):
    """The invariants, worded for the table."""

    READABLE = "documents fit their model"
    ENDED = "every slot of an opened task is scored or failed, or waits for feedback"
    WAITING = "an episode that waits for feedback has no score, no training data and a deadline to come"
    FAILED = "a failed slot has no score and no training data"
    RECORDS = "a slot's record exists, belongs to it, and has its score"
    EVALUATED = "held-out episodes are of the evaluated version, and no training data"
    FORKED = "a fork's episodes begin with exactly the prompt of the turn that they go on from"
    ONCE = "no slot has two trained records, or two sets of training data for a policy"
    OWNED = "training data belongs to a scored slot's record"
    POLICIES = "each policy trains on its own turns"
    COMPLETE = (
        "an episode with training data has no open request, and each turn's parent is an earlier turn of its policy"
    )
    TOOLS = "the tools that a request names are stored unchanged"
    RULES = "the rules that a group was opened with are stored unchanged"
    TOKENS = "trained tokens equal those of the dispatches"
    EXPERTS = "the routed experts that a turn names are stored unchanged"
    SAMPLED = "sampled tokens in the tree equal those of the engine's replies"
    LOGPROBS = "log-probs equal those of the engine's replies"
    VERSIONS = "weight versions equal those that sampled the tokens"
    SUMMARY = "token counts and version bounds agree with the tree"
    STEPS = "trained_steps are unique and at most max_trained_count"
    MARKS = "records have the marks of their policy's training data"
    ACCOUNTS = "a step's mark is on exactly the data that the step reports as trained"
    SURVIVING = "no trained step is above the newest announced one"
    ADVANTAGES = "advantages equal those on the dispatches, and a record's is their mean"
    DROPPED = "dropped data has a reason and no advantage, and its record is abandoned"
    GROUPS = "a group's training data is complete"


@dataclass(slots=True)
class Result:
    """One row of the table. `note`: why something was not examined."""

    examined: int = 0
    violations: int = 0
    examples: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class AuditReport:
    """Results by check, and totals of the run's data."""

    run: str
    results: dict[Check, Result] = field(default_factory=lambda: {check: Result() for check in Check})
    counts: dict[str, int] = field(default_factory=dict)
    set_aside: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(result.violations for result in self.results.values())

    def expect(self, check: Check, right: bool, text: str | Callable[[], str] = "", *, n: int = 1) -> bool:
        """Count `n` examined things; unless `right`, add the violation `text` (found and expected), which is made only then if
        it is a function. Returns `right`."""
        result = self.results[check]
        result.examined += n
        if not right:
            result.violations += 1
            if len(result.examples) < MAX_EXAMPLES:
                result.examples.append(text if isinstance(text, str) else text())
        return right

    def read(self, model: type[Model], document: Mapping[str, Any]) -> Model | None:
        """The document as its model; None and a violation if it does not fit."""
        try:
            read = model.model_validate({**_empty_defaults(model), **document})
        except ValidationError as exc:
            first = exc.errors()[0]
            where = ".".join(map(str, first["loc"]))
            self.expect(Check.READABLE, False, f"{model.__name__} {document['_id']}: {where}: {first['msg']}")
            return None
        self.expect(Check.READABLE, True)
        return read

    def read_all(self, model: type[Model], documents: Iterable[Mapping[str, Any]]) -> list[Model]:
        """Those that fit."""
        read = (self.read(model, document) for document in documents)
        return [one for one in read if one is not None]

    def add(self, name: str, n: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    def merge(self, other: "AuditReport") -> None:
        """Add what `other` examined after this one."""
        for check, result in other.results.items():
            own = self.results[check]
            own.examined += result.examined
            own.violations += result.violations
            own.examples += result.examples[: MAX_EXAMPLES - len(own.examples)]
            own.note = own.note or result.note
        for name, n in other.counts.items():
            self.add(name, n)
        for status, reasons in other.set_aside.items():
            own_reasons = self.set_aside.setdefault(status, {})
            for reason, n in reasons.items():
                own_reasons[reason] = own_reasons.get(reason, 0) + n

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
