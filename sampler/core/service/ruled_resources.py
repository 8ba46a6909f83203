"""What the episodes of one process share, by the number of their group's rules.

Engines, tools, agents and counters are those of the process; the settings, the templates of prompts, the parser of tool calls and
the sources of turns are those of the number.
"""

import asyncio
from dataclasses import replace

from sampler.core.engines.pool.engines import Engines
from sampler.core.episode.resources import Resources
from sampler.core.parsers import get_parser
from sampler.core.scorers import default_scorer, require_scorer
from sampler.core.service.kinds import SamplerKinds, scores_itself
from sampler.core.settings.core_config import CoreConfig
from shared.configuration.sections import flat_values
from shared.documents import Task
from shared.documents.rules import FIRST


class RuledResources:
    def __init__(self, base: Resources, engines: Engines, kinds: SamplerKinds) -> None:
        """`base`: of the rules that the process started with."""
        self._base, self._engines, self._kinds = base, engines, kinds
        self._by_number: dict[int, Resources] = {}

    async def prepare(self, number: int, config: CoreConfig) -> None:
        """Raises ConfigError for rules whose episodes this process cannot play."""
        self._base.agents.require(config.prompt.context_summary)
        if not scores_itself(self._kinds.of_task(None)):
            judge = self._base.agents.judge
            for name in [one.name for one in config.scoring.default_scorers] or [
                default_scorer(config.scoring.default_scorer, judge)
            ]:
                require_scorer(name, judge)
        if flat_values(config) == flat_values(self._base.config):
            self._by_number[number] = self._base
            return
        clients = await asyncio.to_thread(self._engines.clients_under, config)
        own = clients.pop(config.policy)
        self._by_number[number] = replace(
            self._base,
            config=config,
            template=own.template,
            others=clients,
            parser=get_parser(config.prompt.tool_call_parser),
            sources=self._engines.sources_under(config),
        )

    def of(self, task: Task) -> Resources:
        """Of the task's rules; of the process's own for a number that it does not play."""
        return self._by_number.get(FIRST if task.rules is None else task.rules, self._base)
