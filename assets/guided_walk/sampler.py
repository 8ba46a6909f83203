"""Two policies in one episode: a guide sees the goal, and a walker hears the guide and walks.

    guide   "goal: 2 east, 1 north"  ─▶ "e"        with its own conversation, engine, weights and trainer
    walker  "the guide says e"       ─▶ "e"        likewise; the task is the walker's

Each has its own score, the sum of its turns' scores: the walker's is the fraction of the distance covered, the guide's the
fraction of its hints that lead nearer to the goal, whether or not the walker follows.
"""

from assets.gridworld.world import GridTask, Walker, letter_of
from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.scorers import Score
from shared.documents.states import Termination

GUIDE = "guide"


class GuidedSampler(AsyncSampler):
    async def run(self) -> Termination:
        task = self.own_payload(GridTask)
        self.walker = Walker(task, task.start)
        self.hints: list[tuple[Turn, bool]] = []  # each with whether it leads nearer
        self.way = self.walker.distance
        for _ in range(self.config.budget.max_turns):
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
    """The hint as the walker reads it."""
    return f"the guide says {letter_of(hint) or 'nothing'}"
