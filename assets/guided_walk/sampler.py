"""Two policies in one episode: a guide who sees the goal, and a walker who hears the guide and walks.

    guide   "goal: 2 east, 1 north"  ─▶ "e"        its own conversation, engine, weights and trainer
    walker  "the guide says e"       ─▶ "e"        likewise; the task is the walker's

Each has its own score: the walker the part of the way that was walked, the guide the share of its hints that lead nearer to the
goal, whether the walker follows or not.
"""

from dataclasses import replace

from assets.gridworld.world import GridTask, Walker, letter_of
from sampler.sampler import AsyncSampler
from sampler.scorers import Score
from shared.states import Termination

GUIDE = "guide"


class GuidedSampler(AsyncSampler):
    async def run(self) -> Termination:
        task = self.own_payload(GridTask)
        self.walker, self.hints, self.good_hints = Walker(task, task.start), 0, 0
        self.way = self.walker.distance
        for _ in range(self.config.max_turns):
            hint = await self.create_chat_completions([{"role": "user", "content": self.walker.look()}], policy=GUIDE)
            if hint is None:
                return Termination.LENGTH_LIMIT
            self.hints += 1
            self.good_hints += self._leads_nearer(hint.text)
            heard = f"the guide says {letter_of(hint.text) or 'nothing'}"
            step = await self.create_chat_completions([{"role": "user", "content": heard}])
            if step is None:
                return Termination.LENGTH_LIMIT
            self.walker.walk(step.text)
            if self.walker.distance == 0:
                return Termination.ANSWERED
        return Termination.TURNS_LIMIT

    def _leads_nearer(self, hint: str) -> bool:
        imagined = replace(self.walker)
        return imagined.walk(hint) and imagined.distance < self.walker.distance

    async def evaluate_record(self) -> Score:
        left = self.walker.distance
        self.add_metric("reached", left == 0)
        return Score(1 - left / self.way, {"steps_left": left}, others={GUIDE: self.good_hints / self.hints})
