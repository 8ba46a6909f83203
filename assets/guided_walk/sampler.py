"""Two policies in one episode: a guide who sees the goal, and a walker who hears the guide and walks.

    guide   "goal: 2 east, 1 north"  ─▶ "e"        its own conversation, engine, weights and trainer
    walker  "the guide says e"       ─▶ "e"        likewise; the task is the walker's

Each has its own score, to which each of its turns adds its share: the walker the part of the way that was walked, the guide the
share of its hints that lead nearer to the goal, whether the walker follows or not.
"""

from assets.gridworld.world import GridTask, Walker, letter_of
from sampler.sampler import AsyncSampler, Turn
from sampler.scorers import Score
from shared.documents.states import Termination

GUIDE = "guide"


class GuidedSampler(AsyncSampler):
    async def run(self) -> Termination:
        task = self.own_payload(GridTask)
        self.walker = Walker(task, task.start)
        self.hints: list[tuple[Turn, bool]] = []  # and whether each leads nearer
        self.way = self.walker.distance
        for _ in range(self.config.max_turns):
            hint = await self.create_chat_completions([{"role": "user", "content": self.walker.look()}], policy=GUIDE)
            if hint is None:
                return Termination.LENGTH_LIMIT
            self.hints.append((hint, self.walker.leads_nearer(hint.text)))
            step = await self.create_chat_completions([{"role": "user", "content": heard(hint.text)}])
            if step is None:
                return Termination.LENGTH_LIMIT
            before = self.walker.distance
            self.walker.walk(step.text)
            self.score_turn(step, (before - self.walker.distance) / self.way)
            if self.walker.distance == 0:
                return Termination.ANSWERED
        return Termination.TURNS_LIMIT

    async def evaluate_record(self) -> Score:
        left = self.walker.distance
        self.add_metric("reached", left == 0)
        for hint, is_good in self.hints:
            self.score_turn(hint, is_good / len(self.hints))
        good = sum(is_good for _, is_good in self.hints)
        return Score(1 - left / self.way, {"steps_left": left}, others={GUIDE: good / len(self.hints)})


def heard(hint: str) -> str:
    """What the walker hears of it."""
    return f"the guide says {letter_of(hint) or 'nothing'}"
