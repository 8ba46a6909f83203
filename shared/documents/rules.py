"""The rules of a run: settings that belong to the run and not to a process, since they decide what is learned.

    run_rules "main:1" ─ declared by the first process that starts     groups opened since: rules 1
    run_rules "main:2" ─ `tandem rules RUN --set advantage=zscore`     groups opened since: rules 2

A number is written once and never changes. The claim that opens a group stamps the newest number on its task, and the settler of
the group reads that one: settlement is a function of documents. `settlement` is the first section; others may follow.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Self

from pydantic import Field

from shared.documents.base import Document
from shared.documents.data import Task

FIRST = 1
SECTIONS = ("settlement",)


class RunRules(Document):
    """One number of one policy's rules."""

    collection: ClassVar[str] = "run_rules"
    id: str = Field(alias="_id")  # policy:number
    policy: str
    number: int = Field(ge=FIRST)
    settlement: dict[str, Any]  # of `shared.rules.groups.SettlementRules`
    digest: str  # of all sections
    by: str  # the worker, or the person at a machine, that wrote it
    since: datetime | None = None

    @classmethod
    def of(cls, policy: str, number: int, sections: Mapping[str, Mapping[str, Any]], by: str) -> Self:
        """`sections`: plain values."""
        values = {name: dict(sections[name]) for name in SECTIONS}
        identity, digest = rules_id(policy, number), digest_of(values)
        return cls(id=identity, policy=policy, number=number, **values, digest=digest, by=by)

    @property
    def is_whole(self) -> bool:
        """Whether the sections are those that were written."""
        return self.digest == digest_of({name: getattr(self, name) for name in SECTIONS})

    @property
    def origin(self) -> str:
        """In words: its number, when it was written, and by whom."""
        when = "" if self.since is None else f" since {self.since:%Y-%m-%d %H:%M:%S} UTC,"
        return f"rules {self.number} of policy {self.policy},{when} by {self.by}"


def rules_id(policy: str, number: int) -> str:
    return f"{policy}:{number}"


def rules_of(task: Task) -> str:
    """Id of the rules by which a group is settled; the first ones where it was opened before there were any."""
    return rules_id(task.policy, FIRST if task.rules is None else task.rules)


def digest_of(sections: Mapping[str, Any]) -> str:
    text = json.dumps(sections, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
