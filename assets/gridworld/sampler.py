"""A custom sampler: the model walks in the grid world. No tools, no MCP; the environment is a Python object.

    look ─▶ the model's reply ─▶ walk ─▶ progress is the turn's score ─▶ look ─▶ … ─▶ at the goal, or out of turns

The episode's score is the fraction of the distance covered: 1 at the goal, 0 at the initial distance, negative beyond it.
Each turn earns its share.
"""

from assets.gridworld.world import GridTask, Walker
from sampler.core.episode.sampler import AsyncSampler
from sampler.scorers import Score
from shared.documents.states import Termination


class GridSampler(AsyncSampler):
    async def run(self) -> Termination:
        task = self.own_payload(GridTask)
        self.walker, self.lost_turns = Walker(task, task.start), 0
        self.way = self.walker.distance
        for _ in range(self.config.budget.max_turns):
            turn = await self.create_chat_completions([{"role": "user", "content": self.walker.look()}])
            if turn is None:
                return Termination.LENGTH_LIMIT
            before = self.walker.distance
            self.lost_turns += not self.walker.walk(turn.text)
            self.score_turn(turn, (before - self.walker.distance) / self.way)
            if self.walker.distance == 0:
                return Termination.ANSWERED
        return Termination.TURNS_LIMIT

    async def evaluate_record(self) -> Score:
        left = self.walker.distance
        self.add_metric("reached", left == 0)
        self.add_metric("lost_turns", self.lost_turns)
        return Score(1 - left / self.way, {"steps_left": left, "steps_at_the_start": self.way})
