"""Decides which tasks this process can play. Tasks whose scorer, judge or tools it lacks are left to other samplers.

    at the start     checks the demands of the open tasks once; if none can be played here, raises ConfigError
    at a claim       releases a later task that demands something missing here, and claims no more of its kind

So nothing is retried that time cannot fix, samplers with different settings share a run, and `alarms` report which tasks wait.
"""

import logging
from collections.abc import Sequence

from sampler.agents import Judge
from sampler.config import SamplerConfig
from sampler.sampler import AsyncSampler
from sampler.scorers import default_scorer, require_scorer
from sampler.tools import ToolServer
from shared.documents import TaskPayload
from shared.errors import ConfigError
from shared.store.questions import TaskDemand

log = logging.getLogger(__name__)

MAX_TOLD = 20


def scores_itself(kind: type[AsyncSampler]) -> bool:
    """Whether the class scores its episodes or chooses their scorer, so that it may ignore the tasks' scorers."""
    ours = AsyncSampler
    return kind.evaluate_record is not ours.evaluate_record or kind.scorer_name is not ours.scorer_name


class Playable:
    def __init__(
        self, kind: type[AsyncSampler], config: SamplerConfig, judge: Judge | None, servers: Sequence[ToolServer]
    ) -> None:
        self._scores_itself = scores_itself(kind)
        self._default_scorer = config.default_scorer
        self._judge = judge
        self.lacks_tools = kind.uses_tools and not servers
        self._told: dict[str, str] = {}  # by demand: the problem
        self.unusable_scorers: list[str] = []
        if not self._scores_itself:
            require_scorer(default_scorer(config.default_scorer, judge), judge)

    def check(self, asked: Sequence[TaskDemand]) -> None:
        """Check the demands of the open tasks. Raises ConfigError if there are some and none can be played here."""
        bad = [(one, text) for one in asked if (text := self._problem(one.scorer, one.tools))]
        waiting, total = sum(one.num_tasks for one, _ in bad), sum(one.num_tasks for one in asked)
        if bad and waiting == total:
            reasons = dict.fromkeys(text for _, text in bad)
            raise ConfigError(f"this sampler can play none of the {total} open tasks: {'; '.join(reasons)}")
        for one, text in bad:
            self._leave(text, one.scorer, f"{one.num_tasks} open tasks")

    def is_left(self, task: str, payload: TaskPayload) -> bool:
        """Whether the task is left to other samplers. Logs the first of its kind."""
        text = self._problem(payload.scorer, payload.tools)
        if text is not None:
            self._leave(text, payload.scorer, f"task {task} and others like it")
        return text is not None

    def alarms(self) -> list[str]:
        return list(self._told.values())

    def _problem(self, scorer: str | None, tools: Sequence[str] | None) -> str | None:
        return self._tools_problem(tools) or self._scorer_problem(scorer)

    def _tools_problem(self, tools: Sequence[str] | None) -> str | None:
        if self.lacks_tools and tools:
            return f"the task needs tool {tools[0]!r}, but this sampler has no tool servers; set --mcp_manager_url"
        return None

    def _scorer_problem(self, scorer: str | None) -> str | None:
        if self._scores_itself:
            return None
        try:
            require_scorer(scorer or default_scorer(self._default_scorer, self._judge), self._judge)
        except ConfigError as exc:
            return str(exc)
        return None

    def _leave(self, text: str, scorer: str | None, which: str) -> None:
        if scorer is not None and scorer not in self.unusable_scorers and self._scorer_problem(scorer):
            self.unusable_scorers.append(scorer)
        if text not in self._told and len(self._told) < MAX_TOLD:
            self._told[text] = f"{which} wait for another sampler: {text}"
            log.error("%s", self._told[text])
