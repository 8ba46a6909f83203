"""Import-time checks that a run's samplers can play a task: its scorer, its judge, its tools.

Promise: a task is refused only for certain errors. What only the samplers can know gives one warning for all equal tasks.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.documents import TaskPayload
from shared.store.questions import MAX_ASKED, TaskDemand
from shared.tasks.scorer_names import SCHEMA_KEY, needs_judge
from shared.user_code.payload import shown

MAX_WARNINGS = 20
COMPARING = ("agentcpm", "asearcher")  # judges that need a reference answer


@dataclass(frozen=True, slots=True)
class Samplers:
    """What is known about the samplers that will play the tasks. None: unknown."""

    knows_scorers: bool = False  # exactly those of `shared.tasks.scorer_names`
    has_judge: bool | None = None
    has_tools: bool | None = None
    scores_itself: bool = False  # a sampler class that overrides `evaluate_record` may ignore scorers


class TaskCheck:
    def __init__(self, samplers: Samplers) -> None:
        self._samplers = samplers
        self.warnings: dict[str, int] = {}  # {text: number of tasks}
        self._asked: dict[tuple[tuple[str, ...] | None, tuple[str, ...]], int] = {}

    def problems(self, payload: TaskPayload) -> Iterator[str]:
        """Certain errors, one text each."""
        tools = None if payload.tools is None else tuple(payload.tools)
        kind = (tools, tuple(payload.exclude_tools))
        if kind in self._asked or len(self._asked) < MAX_ASKED:
            self._asked[kind] = self._asked.get(kind, 0) + 1
        if tools and self._samplers.has_tools is False:
            yield f'"tools" names {shown(tools[0])}, but the samplers have no tool servers; give --mcp_manager_url'
        if payload.scorer is not None and not self._samplers.scores_itself:
            yield from self._scorer_problems(payload.scorer, payload)

    @property
    def asked(self) -> list[TaskDemand]:
        """The tools that the tasks name."""
        return [TaskDemand(None, tools, exclude, n) for (tools, exclude), n in self._asked.items()]

    def _scorer_problems(self, scorer: str, payload: TaskPayload) -> Iterator[str]:
        known = needs_judge()
        if scorer not in known:
            found = f'"scorer" is {shown(scorer)}; expected {_nearest(scorer, known)}'
            if self._samplers.knows_scorers:
                yield f"{found}, or one that a module of scorer_modules registers"
            else:
                self._warn(f"{found}. Samplers without a module that registers it (scorer_modules) skip these tasks")
        elif known[scorer] and not self._samplers.has_judge:
            needed = f'"scorer" is {shown(scorer)}, which needs a judge: agent_config_path, a file with a scorer_agent'
            if self._samplers.has_judge is False:
                yield needed
            else:
                self._warn(f"{needed}. Samplers without it skip these tasks")
        if scorer == SCHEMA_KEY and not isinstance((payload.metadata or {}).get(SCHEMA_KEY), dict):
            yield f'"scorer" is "{SCHEMA_KEY}", which needs a schema; expected an object in "metadata.{SCHEMA_KEY}"'
        if scorer in COMPARING and not any(answer.strip() for answer in payload.accepted):
            yield f'"scorer" is {shown(scorer)}, which compares with an answer; expected "answer"'

    def _warn(self, text: str) -> None:
        if text in self.warnings or len(self.warnings) < MAX_WARNINGS:
            self.warnings[text] = self.warnings.get(text, 0) + 1


def _nearest(scorer: str, known: Mapping[str, Any]) -> str:
    if close := difflib.get_close_matches(scorer, known, n=1, cutoff=0.6):
        return f'"{close[0]}"'
    return f"one of {', '.join(sorted(known))}"
