"""Import-time checks that a run's samplers can play a task: its sampler, its scorer, its judge, its tools.

Promise: a task is refused only for certain errors. What only the samplers can know gives one warning for all equal tasks.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shared.documents import TaskPayload
from shared.errors import ConfigError
from shared.store.questions import MAX_ASKED, TaskDemand
from shared.tasks.rubrics import RUBRIC_KEY, rubric_problem
from shared.tasks.sampler_names import BUNDLED, SamplerTraits
from shared.tasks.scorer_names import SCHEMA_KEY, needs_judge
from shared.user_code.payload import shown

MAX_WARNINGS = 20
COMPARING = ("agentcpm", "asearcher", "exact_match", "f1", "includes", "math", "squad_f1", "squad_match")
NO_ANSWER = "every reply would be scored 0"


@dataclass(frozen=True, slots=True)
class Samplers:
    """What is known about the samplers that will play the tasks. None: unknown."""

    knows_scorers: bool = False  # exactly those of `shared.tasks.scorer_names`
    has_judge: bool | None = None
    has_tools: bool | None = None  # tool servers
    default: SamplerTraits = BUNDLED["mcp"]  # of tasks that name no sampler
    named: Mapping[str, SamplerTraits] = field(default_factory=lambda: BUNDLED)
    knows_samplers: bool = False  # exactly those of `named`
    lacking: Mapping[str, str] = field(default_factory=dict)  # by name: the setting without which they cannot play it
    default_scorers: tuple[str, ...] | None = None  # of tasks that name none; empty: these are scored by feedback alone
    elsewhere: str | None = None  # a name that other processes than these play
    model: Path | None = None  # its folder, where it is on this machine


class TaskCheck:
    def __init__(self, samplers: Samplers) -> None:
        self._samplers = samplers
        self.warnings: dict[str, int] = {}  # {text: number of tasks}
        self.first_places: dict[str, str] = {}  # {text: the first of them}
        self._place = ""
        self._demands: dict[tuple[tuple[str, ...] | None, tuple[str, ...]], int] = {}

    @property
    def counted_warnings(self) -> Iterator[str]:
        """The warnings, each with the number of tasks and the first one's place."""
        for text, count in self.warnings.items():
            first = self.first_places.get(text)
            yield f"{count} tasks: {text}" + (f" (the first: {first})" if first else "")

    def problems(self, payload: TaskPayload, place: str = "", *, has_images: bool = False) -> Iterator[str]:
        """Certain errors, one text each. `place`: file and line."""
        self._place = place
        if has_images:
            yield from self._image_problems
        tools = None if payload.tools is None else tuple(payload.tools)
        kind = (tools, tuple(payload.exclude_tools))
        if kind in self._demands or len(self._demands) < MAX_ASKED:
            self._demands[kind] = self._demands.get(kind, 0) + 1
        yield from self._sampler_problems(payload.sampler)
        traits = self._traits(payload.sampler)
        if tools and traits is not None and traits.uses_tools and self._samplers.has_tools is False:
            yield f'"tools" names {shown(tools[0])}, but the samplers have no tool servers; give --mcp_manager_url'
        if traits is not None and not traits.scores_itself:
            for scorer in payload.scorer_names:
                yield from self._scorer_problems(scorer, payload)
            yield from self._answer_problems(payload)

    @cached_property
    def _image_problems(self) -> tuple[str, ...]:
        """Of each task with images."""
        model = self._samplers.model
        if model is None:
            return ()
        from shared.images.families import family_of  # numpy and all families: for tasks with images alone

        try:
            reads_images = family_of(model) is not None
        except ConfigError as exc:
            return (f'"query" shows images: {exc}',)
        return () if reads_images else (f'"query" shows images; the model in {model} reads text alone',)

    @property
    def demands(self) -> list[TaskDemand]:
        """The tools that the tasks name."""
        return [TaskDemand((), tools, exclude, n) for (tools, exclude), n in self._demands.items()]

    def _traits(self, sampler: str | None) -> SamplerTraits | None:
        return self._samplers.default if sampler is None else self._samplers.named.get(sampler)

    def _sampler_problems(self, sampler: str | None) -> Iterator[str]:
        samplers = self._samplers
        if sampler is None:
            return
        actual = f'"sampler" is {shown(sampler)}'
        if sampler in samplers.lacking:
            yield f"{actual}, for which the samplers lack a setting: {samplers.lacking[sampler]}"
        elif sampler == samplers.elsewhere:
            self._warn(f"{actual}: they wait for a gateway (python -m sampler.gateway), which is started by itself")
        elif sampler not in samplers.named:
            actual = f"{actual}; expected {_nearest(sampler, samplers.named)}"
            if samplers.knows_samplers:
                yield f"{actual}, or one that the setting samplers gives to a class"
            else:
                self._warn(f"{actual}. Samplers without it (setting samplers) skip these tasks")

    def _scorer_problems(self, scorer: str, payload: TaskPayload) -> Iterator[str]:
        known = needs_judge()
        if scorer not in known:
            actual = f'"scorer" is {shown(scorer)}; expected {_nearest(scorer, known)}'
            if self._samplers.knows_scorers:
                yield f"{actual}, or one that a module of scorer_modules registers"
            else:
                self._warn(f"{actual}. Samplers without a module that registers it (scorer_modules) skip these tasks")
        elif known[scorer] and not self._samplers.has_judge:
            needed = f'"scorer" is {shown(scorer)}, which needs a judge: agent_config_path, a file with a scorer_agent'
            if self._samplers.has_judge is False:
                yield needed
            else:
                self._warn(f"{needed}. Samplers without it skip these tasks")
        if scorer == SCHEMA_KEY and not isinstance((payload.metadata or {}).get(SCHEMA_KEY), dict):
            yield f'"scorer" is "{SCHEMA_KEY}", which needs a schema; expected an object in "metadata.{SCHEMA_KEY}"'
        if scorer == "judge_rubric":
            problem = rubric_problem((payload.metadata or {}).get(RUBRIC_KEY))
            if problem is not None:
                yield f'"scorer" is "judge_rubric": {problem}'

    def _answer_problems(self, payload: TaskPayload) -> Iterator[str]:
        """Of a task whose scorers compare with an answer, and that has none."""
        if any(answer.strip() for answer in payload.accepted):
            return
        defaults = self._samplers.default_scorers
        comparing = [scorer for scorer in payload.scorer_names if scorer in COMPARING]
        if comparing:
            yield f'"scorer" is {shown(comparing[0])}, which compares with an answer; expected "answer": {NO_ANSWER}'
        elif payload.scorer_names or payload.feedback_deadline_s:
            return
        elif defaults is None:
            self._warn(
                f'no "answer" and no "scorer": by the default scorers {NO_ANSWER}. Samplers that score by themselves do '
                "not need one"
            )
        elif defaults and all(scorer in COMPARING for scorer in defaults):
            default = f"the samplers' default {shown(defaults[0])} compares with an answer"
            yield f'"answer" is missing, and {default}: {NO_ANSWER}; give "answer", or a "scorer" that needs none'

    def _warn(self, text: str) -> None:
        if text in self.warnings or len(self.warnings) < MAX_WARNINGS:
            self.warnings[text] = self.warnings.get(text, 0) + 1
            self.first_places.setdefault(text, self._place)


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f'"{close[0]}"'
    return f"one of {', '.join(sorted(known))}"
