"""A world of two players for the tests: who says the higher digit wins. Standard library only: it is loaded in the workers."""

from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments import Environment, Step
from sampler.environments.environment import COMPLETED, Index, Message, reply_text, user_says


class Duel(Environment):
    """`asks`: the seats in the order of their turns. `earned`: rewards in place of the world's own.
    `tells`: messages in place of its own later ones."""

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        self.asks, self.earned = list(task.get("asks", (0, 1))), task.get("earned")
        self.tells = task.get("tells")
        self.said: dict[int, str] = {}
        self.players = task["players"]
        return Step(user_says(f"{self.players} players, seat {self.asks[0]}"), seat=self.asks[0])

    def interact(self, replies: Sequence[Message]) -> Step:
        self.said[self.asks.pop(0)] = reply_text(replies).strip()
        if self.asks:
            messages = self.tells or user_says(f"seat {self.asks[0]}, go")
            return Step(messages, seat=self.asks[0], metrics={"moves": len(self.said)})
        won = max(self.said, key=lambda seat: self.said[seat])
        earned = {seat: 1.0 if seat == won else -1.0 for seat in range(self.players)}
        given = earned if self.earned is None else {int(seat): reward for seat, reward in self.earned.items()}
        return Step(status=COMPLETED, rewards=given, metrics={"moves": len(self.said)}, result={"said": self.said})
