"""Decides which tasks this process can play. Tasks whose sampler, scorer, judge or tools it lacks are left to others.

    at the start     checks the demands of the open tasks once; if none can be played here, raises ConfigError
    at a claim       releases a later task that demands something missing here, and claims no more of its kind

So nothing is retried that time cannot fix, samplers with different settings share a run, and `alarms` report which tasks wait.
"""

import logging
from collections.abc import Iterator, Sequence

from sampler.core.api_models import Judge
from sampler.core.scorers import default_scorer, require_scorer
from sampler.core.service.kinds import SamplerKinds, scores_itself
from sampler.core.settings.core_config import CoreConfig
from sampler.core.tools import ToolServer
from shared.documents import TaskPayload
from shared.errors import ConfigError
from shared.store.questions import TaskDemand
from shared.store.slots import Unplayable

log = logging.getLogger(__name__)

MAX_TOLD = 20


class Playable:
    """`left`: the tasks that it claims no more."""

    def __init__(
        self, kinds: SamplerKinds, config: CoreConfig, judge: Judge | None, servers: Sequence[ToolServer]
    ) -> None:
        self._kinds = kinds
        self._default_scorers = [one.name for one in config.scoring.default_scorers] or [
            default_scorer(config.scoring.default_scorer, judge)
        ]
        self._judge = judge
        self._has_tools = bool(servers)
        self._reported: dict[str, str] = {}  # by demand: the problem
        toolless = [name for name, kind in kinds if kind.uses_tools and not servers]
        self.left = [Unplayable(name, with_tools=True) for name in toolless]
        if not scores_itself(kinds.of_task(None)):
            for name in self._default_scorers:
                require_scorer(name, judge)

    def check(self, open_demands: Sequence[TaskDemand]) -> None:
        """Check the demands of the open tasks. Raises ConfigError if there are some and none can be played here."""
        bad = [(one, text) for one in open_demands if (text := self._problem(one.sampler, one.scorers, one.tools))]
        waiting, total = sum(one.num_tasks for one, _ in bad), sum(one.num_tasks for one in open_demands)
        if bad and waiting == total:
            reasons = dict.fromkeys(text for _, text in bad)
            raise ConfigError(f"this sampler can play none of the {total} open tasks: {'; '.join(reasons)}")
        for one, text in bad:
            self._leave(text, one.sampler, one.scorers, f"{one.num_tasks} open tasks")

    def excludes(self, task: str, payload: TaskPayload) -> bool:
        """Whether the task is left to other samplers. Logs the first of its kind."""
        text = self._problem(payload.sampler, payload.scorer_names, payload.tools)
        if text is not None:
            self._leave(text, payload.sampler, payload.scorer_names, f"task {task} and others like it")
        return text is not None

    def alarms(self) -> list[str]:
        return list(self._reported.values())

    def _problem(self, sampler: str | None, scorers: Sequence[str], tools: Sequence[str] | None) -> str | None:
        return (
            self._sampler_problem(sampler)
            or self._tools_problem(sampler, tools)
            or next((text for _, text in self._scorer_problems(sampler, scorers)), None)
        )

    def _sampler_problem(self, sampler: str | None) -> str | None:
        try:
            self._kinds.of_task(sampler)
        except ConfigError as exc:
            return str(exc)
        return None

    def _tools_problem(self, sampler: str | None, tools: Sequence[str] | None) -> str | None:
        if tools and not self._has_tools and self._kinds.use_tools(sampler):
            return f"the task needs tool {tools[0]!r}, but this sampler has no tool servers; set --mcp_manager_url"
        return None

    def _scorer_problems(self, sampler: str | None, scorers: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Each scorer that cannot be used, and why."""
        if scores_itself(self._kinds.of_task(sampler)):
            return
        for name in scorers or self._default_scorers:
            try:
                require_scorer(name, self._judge)
            except ConfigError as exc:
                yield name, str(exc)

    def _leave(self, text: str, sampler: str | None, scorers: Sequence[str], which: str) -> None:
        if self._sampler_problem(sampler):
            kinds = [Unplayable(sampler)]
        else:
            bad = [name for name, _ in self._scorer_problems(sampler, scorers)]
            kinds = [Unplayable(sampler, name) for name in bad if scorers]
            kinds += [Unplayable(sampler, without_scorer=True)] if bad and not scorers else []
        self.left += [kind for kind in kinds if kind not in self.left]
        if text not in self._reported and len(self._reported) < MAX_TOLD:
            self._reported[text] = f"{which} wait for another sampler: {text}"
            log.error("%s", self._reported[text])
