"""TextArena's games: `textarena:TowerOfHanoi-v0`, alone, with every seat played by an actor, or against opponents that draw
from given moves.

    index         the seed of the game
    custom_task   {"players": 2, "seat": 0, "opponent": ["[0]", "[1]", …], "options": {"piles": [2, 3]},
                   "instruction": "Take the last one.", "show": ["GAME_BOARD", "GAME_ADMIN"]}

With several players and no `opponent`, each step names the seat that it asks (`"sampler": "game"`), and the last one has the
rewards of all. `instruction` takes the place of the game's own prompt, and `show` lists the kinds of its observations that are
told, for models that its long texts are too much for. Of several boards in one observation only the last is told.
An opponent's move is drawn by the seed among those of its list that are legal then. Games draw from global generators, which
are each session's own in its worker (`own_random.py`).
"""

import contextlib
import copy
import importlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments.checked_step import WrongStep, number
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
from sampler.environments.task_fields import OBJECT, TEXT, TEXTS, fields_of, meant, whole

KINDS = ("PROMPT", "PLAYER_ACTION", "GAME_ACTION_DESCRIPTION", "GAME_MESSAGE", "GAME_BOARD", "GAME_ADMIN")
RAW = "-raw"  # without the wrappers that repeat the whole conversation in every observation


class TextArenaEnvironment(Environment):
    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        given = fields_of(
            task, players=whole(1), seat=whole(0), opponent=TEXTS, options=OBJECT, instruction=TEXT, show=TEXTS
        )
        self._seed = seed_of(index)
        self._drawn = random.Random(self._seed + 1)
        self._seat: int = given.get("seat", 0)
        self._moves: list[str] = list(given.get("opponent", ()))
        players = given.get("players", 2 if self._moves else 1)
        self._all_seats = players > 1 and not self._moves
        if self._seat >= players or (self._all_seats and "seat" in given):
            raise TaskRefused(
                f"seat is {self._seat} of {players} players, with {len(self._moves)} moves for opponents; expected a seat "
                "from 0 on, and moves where others play: opponent"
            )
        self._instruction = given.get("instruction")
        self._shown = _kinds(given.get("show", ()))
        self._game = self._made(dict(given.get("options", {})))
        try:
            self._game.reset(num_players=players, seed=self._seed)
        except (OSError, MemoryError):  # of the machine
            raise
        except Exception as exc:  # of any game: the same players and options would raise it again
            problem = f"{type(exc).__name__}: {exc}"
            options = given.get("options", {})
            raise TaskRefused(
                f"{self.name} cannot begin with {players} players and options {options}: {problem}"
            ) from exc
        self._news: list[str] = []
        self._turns = self._invalid = 0
        if self._others_play():
            raise WrongStep("the game", "at its end", "a game in which the model moves: its opponents have ended it")
        self._instructed: set[int] = set()
        return self._asking()

    def interact(self, replies: Sequence[Message]) -> Step:
        self._turns += 1
        mover = self._seat
        over, _ = self._game.step(reply_text(replies))
        over = over or self._others_play()
        if over:
            return self._end()
        self._invalid += self._seat == mover and self._was_refused
        return self._asking(reward=0.0, metrics=self._metrics())

    def _asking(self, **values: Any) -> Step:
        return Step(user_says(self._news_text()), seat=self._seat if self._all_seats else None, **values)

    def _end(self) -> Step:
        rewards, info = self._game.close()
        earned = {
            int(seat): number(f"{self.name}'s reward of seat {seat}", one) for seat, one in (rewards or {}).items()
        }
        mine = dict((info or {}).get(self._seat) or {})
        invalid = [bool(of.get("invalid_move")) for of in (info or {}).values()] if self._all_seats else []
        metrics = {**self._metrics(), "lost_by_invalid_move": float(any(invalid) or bool(mine.get("invalid_move")))}
        result = {
            "rewards": {str(seat): value for seat, value in (rewards or {}).items()},
            "reason": mine.get("reason"),
        }
        if self._all_seats:
            return Step(status=COMPLETED, rewards=earned, metrics=metrics, result=result)
        if self._seat not in earned:
            raise RuntimeError(f"{self.name} ended without a reward of seat {self._seat}")
        return Step(status=COMPLETED, reward=earned[self._seat], metrics=metrics, result=result)

    def _others_play(self) -> bool:
        """The opponents' moves until it is a model's turn; True: the game is over."""
        while True:
            seat, observation = self._game.get_observation()
            if self._all_seats or seat == self._seat:
                self._seat = seat
                self._was_refused = any(_kind(part) == "GAME_ADMIN" for part in observation)  # it asks for another move
                last = max((k for k, part in enumerate(observation) if _kind(part) == "GAME_BOARD"), default=-1)
                visible_parts = [part for k, part in enumerate(observation) if _kind(part) != "GAME_BOARD" or k == last]
                self._news = [str(part[1]) for part in visible_parts if self._tells(part)]
                return False
            if not self._moves:
                raise TaskRefused(f"{self.name} asks seat {seat}; expected players, one for each of its seats")
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

    def _tells(self, part: Any) -> bool:
        kind = _kind(part)
        if (kind == "PROMPT" and self._instruction is not None) or (self._shown and kind not in self._shown):
            return False
        return not (
            kind == "PLAYER_ACTION" and part[0] in (self._seat, -1)
        )  # the conversation has the model's own move

    def _news_text(self) -> str:
        parts = [part.strip() for part in self._news if part.strip()]
        if self._instruction is not None and self._seat not in self._instructed:
            parts.insert(0, str(self._instruction))
        self._instructed.add(self._seat)
        return "\n\n".join(parts) or "It is your turn."

    def _metrics(self) -> dict[str, Any]:
        return {"game_turns": self._turns, "invalid_moves": self._invalid}

    def _made(self, options: dict[str, Any]) -> Any:
        import textarena

        try:
            return textarena.make(f"{self.name}{RAW}", **options)
        except ValueError as exc:
            raise TaskRefused(
                f"textarena cannot make {self.name}: {exc}; expected an id such as TowerOfHanoi-v0"
            ) from exc
        except TypeError as exc:
            raise TaskRefused(f"{self.name} takes no options {options}: {exc}") from exc
        except (ImportError, SyntaxError) as exc:
            raise TaskRefused(f"{self.name} cannot be loaded here: {exc}") from exc
        except (OSError, MemoryError):  # of the machine
            raise
        except Exception as exc:  # of foreign code, which may raise anything
            raise TaskRefused(
                f"{self.name} cannot be made with options {options}: {type(exc).__name__}: {exc}"
            ) from exc

    @classmethod
    def load(cls, name: str) -> None:
        """The game's module too, which draws the packages that it needs in."""
        import textarena

        spec = textarena.envs.registration.ENV_REGISTRY.get(f"{name}{RAW}")
        made_by = getattr(spec, "entry_point", None)
        if isinstance(made_by, str):
            with contextlib.suppress(Exception):  # of a game that is broken: its sessions are refused in words
                importlib.import_module(made_by.partition(":")[0])

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        import textarena

        if f"{name}{RAW}" not in textarena.envs.registration.ENV_REGISTRY:
            raise ValueError(f"textarena has no {name!r}")
        return range(1000)


def _kind(part: Any) -> str:
    return str(getattr(part[2], "name", "")) if len(part) > 2 else ""


def _kinds(show: Sequence[str]) -> tuple[str, ...]:
    """Kinds of observations; (): all. Raises TaskRefused."""
    kinds = tuple(kind.upper() for kind in show)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise TaskRefused(f"show lists {unknown[0]!r}; expected some of {', '.join(KINDS)}{meant(unknown[0], KINDS)}")
    return kinds
