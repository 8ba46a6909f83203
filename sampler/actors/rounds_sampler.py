"""Actors speak by turns: `"A -> B -> (C/D)*2 -> *"` (docs/bring/actors.md). A task's `rounds` say who speaks when.

for each seat of the order:  what the others said since its last turn ─▶ its reply
"""

from sampler.actors.actor_sampler import ActorSampler
from sampler.core.episode.sampler import Turn
from shared.documents.states import Termination


class RoundsSampler(ActorSampler):
    """Override `is_over` for talks that may end early, and `evaluate_record` for a score of your own."""

    async def run(self) -> Termination:
        for seat in self.order():
            turn = await self.speak(seat)
            ended = self.ended_by(turn)
            if ended is not None:
                return ended
            if turn is not None and self.is_over(seat, turn):
                break
        return Termination.ANSWERED

    def is_over(self, seat: str, turn: Turn) -> bool:
        """Whether the talk ends with this turn."""
        return False
