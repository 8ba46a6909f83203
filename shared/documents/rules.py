"""The rules of a run: settings that belong to the run and not to a process, since they decide what is learned.

    run_rules "main:1" ─ declared by the first process that starts     groups opened since: rules 1
    run_rules "main:2" ─ `tandem rules RUN --set temperature=0.8`      groups opened since: rules 2

A number is written once and never changes. The claim that opens a group stamps the newest number on its task: its episodes are
played and scored by that number, and its settler reads it. So a group is a function of documents.
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
SECTIONS = ("group", "scoring", "prompt", "sampling", "budget", "policies", "actors", "agents", "environments")


class RunRules(Document):
    """One number of one policy's rules. Its sections are those of `shared.rules.run_rules`, as plain values."""

    collection: ClassVar[str] = "run_rules"
    id: str = Field(alias="_id")  # policy:number
    policy: str
    number: int = Field(ge=FIRST)
    group: dict[str, Any]  # size, selection, masks, advantage
    scoring: dict[str, Any]  # of tasks that say nothing of their own, and scores that come later
    prompt: dict[str, Any]  # instructions, chat template, tools' format, context policy
    sampling: dict[str, Any]  # temperatures, sources of turns
    budget: dict[str, Any]  # turns and tokens
    policies: dict[str, Any]  # that take turns besides this one
    actors: dict[str, Any]  # seats, and who speaks when
    agents: dict[str, Any]  # of episodes that a foreign agent plays
    environments: dict[str, Any]
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
    def sections(self) -> dict[str, dict[str, Any]]:
        return {name: getattr(self, name) for name in SECTIONS}

    @property
    def values(self) -> dict[str, Any]:
        """{rule: value}: no two sections have a rule of one name."""
        return {name: value for section in self.sections.values() for name, value in section.items()}

    @property
    def is_whole(self) -> bool:
        """Whether the sections are those that were written."""
        return self.digest == digest_of(self.sections)

    @property
    def origin(self) -> str:
        """In words: its number, when it was written, and by whom."""
        when = "" if self.since is None else f" since {self.since:%Y-%m-%d %H:%M:%S} UTC,"
        return f"rules {self.number} of policy {self.policy},{when} by {self.by}"


def rules_id(policy: str, number: int) -> str:
    return f"{policy}:{number}"


def rules_of(task: Task) -> str:
    """Id of a group's rules; the first ones where it was opened before there were any."""
    return rules_id(task.policy, FIRST if task.rules is None else task.rules)


def digest_of(sections: Mapping[str, Any]) -> str:
    text = json.dumps(sections, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
