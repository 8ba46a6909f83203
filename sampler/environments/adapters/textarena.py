"""TextArena's games: `textarena:TowerOfHanoi-v0`, alone, or against opponents that draw from given moves.

    index         the seed of the game
    custom_task   {"seat": 0, "players": 2, "opponent": ["[0]", "[1]", …]}

An opponent's move is drawn by the seed among those of its list that are legal then. Each session has random numbers of its
own: games draw from Python's global generator, which its worker swaps at every step.
"""

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sampler.environments.environment import (
    COMPLETED,
    Environment,
    Index,
    Message,
    Step,
    TaskRefused,
    reply_text,
    seed_of,
    user_says,
)

RAW = "-raw"  # without the wrappers that repeat the whole conversation in every observation


class TextArenaEnvironment(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        self._seed = seed_of(index)
        self._random = random.Random(self._seed).getstate()
        self._drawn = random.Random(self._seed + 1)
        self._seat = int(task.get("seat", 0))
        self._moves = [str(move) for move in task.get("opponent") or ()]
        players = int(task.get("players", 2 if self._moves else 1))
        if not 0 <= self._seat < players or (players > 1 and not self._moves):
            raise TaskRefused(
                f"seat is {self._seat} of {players} players, with {len(self._moves)} moves for opponents; expected a seat "
                "from 0 on, and moves where others play: opponent"
            )
        with self._own_random():
            self._game = self._made()
            try:
                self._game.reset(num_players=players, seed=self._seed)
            except (AssertionError, ValueError, TypeError) as exc:
                raise TaskRefused(f"{self.name} cannot begin with {players} players: {exc}") from exc
            self._heard: list[str] = []
            self._turns = self._invalid = 0
            over = self._others_play()
        if over:
            raise RuntimeError(f"{self.name} ended before the model's first move")
        return Step(user_says(self._told()))

    def interact(self, replies: Sequence[Message]) -> Step:
        with self._own_random():
            self._turns += 1
            over, _ = self._game.step(reply_text(replies))
            if not over and self._game.state.current_player_id == self._seat and self._plays_with_others:
                self._invalid += 1  # the game asks for another move
            over = over or self._others_play()
            if over:
                return self._end()
        return Step(user_says(self._told()), reward=0.0, metrics=self._metrics())

    @property
    def _plays_with_others(self) -> bool:
        return bool(self._moves)

    def _end(self) -> Step:
        rewards, info = self._game.close()
        reward = float((rewards or {}).get(self._seat, 0.0))
        mine = dict((info or {}).get(self._seat) or {})
        metrics = {**self._metrics(), "lost_by_invalid_move": float(bool(mine.get("invalid_move")))}
        result = {
            "rewards": {str(seat): value for seat, value in (rewards or {}).items()},
            "reason": mine.get("reason"),
        }
        return Step(status=COMPLETED, reward=reward, metrics=metrics, result=result)

    def _others_play(self) -> bool:
        """The opponents' moves until it is the model's turn; True: the game is over."""
        while True:
            seat, observation = self._game.get_observation()
            if seat == self._seat:
                self._heard = [str(part[1]) for part in observation if not _is_own(part, self._seat)]
                return False
            if self._game.step(self._legal_move(seat))[0]:
                return True

    def _legal_move(self, seat: int) -> str:
        """Tried on a copy of the game: an illegal move would count against the opponent."""
        moves = self._drawn.sample(self._moves, len(self._moves))
        for move in moves:
            trial = copy.deepcopy(self._game)
            over, _ = trial.step(move)
            if over or trial.state.current_player_id != seat:
                return move
        return moves[0]

    def _told(self) -> str:
        return "\n\n".join(part.strip() for part in self._heard if part.strip()) or "It is your turn."

    def _metrics(self) -> dict[str, Any]:
        return {"game_turns": self._turns, "invalid_moves": self._invalid}

    def _made(self) -> Any:
        import textarena

        try:
            return textarena.make(f"{self.name}{RAW}")
        except ValueError as exc:
            raise TaskRefused(f"textarena has no {self.name!r}; expected an id such as TowerOfHanoi-v0") from exc

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        others = random.getstate()
        random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(others)

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        import textarena

        if f"{name}{RAW}" not in textarena.envs.registration.ENV_REGISTRY:
            raise ValueError(f"textarena has no {name!r}")
        return range(1000)


def _is_own(part: Any, seat: int) -> bool:
    """Whether it repeats the model's own move, which the conversation has."""
    return len(part) > 2 and getattr(part[2], "name", "") == "PLAYER_ACTION" and part[0] in (seat, -1)
