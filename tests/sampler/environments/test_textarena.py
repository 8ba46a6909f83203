"""TextArena: the adapter against the real package, over the wire. Runs where the package is (`package_services.py`)."""

from collections.abc import Iterator
from typing import Any

import pytest

from sampler.environments.adapters.textarena import TextArenaEnvironment
from tests.sampler.environments.package_services import adapters
from tests.sampler.environments.services import Service


@pytest.fixture(scope="module")
def textarena() -> Iterator[Service]:
    names = ("TowerOfHanoi-v0", "TicTacToe-v0", "Mastermind-v0", "Nim-v0", "Sokoban-v0")
    with adapters("textarena", *names, "QuantumTicTacToe-v0", "Countdown-v0", "ConnectFour-v0") as found:
        yield found


HANOI = ("[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]")


def test_a_game_alone_is_played_to_its_reward(textarena: Service) -> None:
    session, step = textarena.start("TowerOfHanoi-v0", 3)
    assert "A: [3, 2, 1]" in step["messages"][0]["content"]
    invalid = textarena.say(session, "what?").json()
    assert (invalid["status"], "invalid move" in invalid["messages"][0]["content"]) == ("running", True)
    steps = [textarena.say(session, move).json() for move in HANOI]
    assert "PLAYER" not in steps[0]["messages"][0]["content"]
    assert (steps[-1]["status"], steps[-1]["reward"], steps[-1]["metrics"]["game_turns"]) == ("completed", 1.0, 8)


def test_an_opponent_draws_legal_moves_by_the_seed(textarena: Service) -> None:
    moves = [f"[{k}]" for k in range(9)]
    ends = []
    for _ in range(2):
        session, _ = textarena.start("TicTacToe-v0", 3, opponent=moves)
        said = []
        for move in (4, 0, 8, 2, 6, 1, 3, 5, 7):
            step = textarena.say(session, f"[{move}]").json()
            said.append(step)
            if step["finish"]:
                break
        ends.append(said)
    assert ends[0] == ends[1]
    assert ends[0][-1]["reward"] in (1.0, 0.0, -1.0)
    assert ends[0][-1]["metrics"]["lost_by_invalid_move"] == 0.0
    refused = textarena.http.post(
        "/start_sample", json={"name": "TicTacToe-v0", "index": 1, "custom_task": {"players": 2, "seat": 1}}
    )
    assert (refused.status_code, "moves where others play" in refused.text) == (422, True)


def test_every_seat_of_a_game_may_be_asked_and_the_end_has_the_rewards_of_all(textarena: Service) -> None:
    own = {"players": 2, "options": {"piles": [1, 2]}, "instruction": "Nim.", "show": ["GAME_BOARD", "GAME_ADMIN"]}
    session, step = textarena.start("Nim-v0", 3, **own)
    told = [(step["seat"], step["messages"][0]["content"])]
    for move in ("[1 1]", "[7 1]", "[0 1]", "[1 1]"):
        step = textarena.say(session, move).json()
        told += [(step["seat"], message["content"]) for message in step["messages"]]
    board = "Current Pile:\n  pile 0: {}\n  pile 1: {}"
    assert told[0] == (0, "Nim.\n\n" + board.format(1, 2))
    assert told[1] == (1, "Nim.\n\n" + board.format(1, 1)), "its own prompt, and the last board alone"
    assert (told[2][0], "invalid move" in told[2][1]) == (1, True), "the seat is asked again"
    assert told[3] == (0, board.format(0, 1))
    assert (step["status"], step["reward"], step["rewards"]) == ("completed", None, {"0": 1.0, "1": -1.0})
    assert step["metrics"] == {"game_turns": 4, "invalid_moves": 1, "lost_by_invalid_move": 0.0}


@pytest.mark.parametrize(
    ("custom", "wrong"),
    [
        ({"show": ["BOARD"]}, "show lists 'BOARD'; expected some of PROMPT"),
        ({"options": {"towers": 3}}, "takes no options {'towers': 3}"),
        ({"show": "GAME_BOARD"}, "show is 'GAME_BOARD'; expected a list of texts"),
        ({"options": {"piles": "abc"}}, "cannot begin with 2 players and options {'piles': 'abc'}: AttributeError: "),
        ({"players": 99}, "cannot begin with 99 players"),
        ({"players": "two"}, "players is 'two'; expected a whole number from 1 on"),
        ({"players": True}, "players is True; expected a whole number"),
        ({"seat": -1}, "seat is -1; expected a whole number from 0 on"),
        ({"opponent": "[0]"}, "opponent is '[0]'; expected a list of texts"),
        ({"instructions": "x"}, "did you mean 'instruction'?"),
        ({"from": 1}, "custom_task has 'from'; expected players, seat, opponent"),
    ],
)
def test_options_that_a_game_does_not_have_are_refused(
    textarena: Service, custom: dict[str, object], wrong: str
) -> None:
    task = {"name": "Nim-v0", "index": 1, "custom_task": {"players": 2, **custom}}
    refused = textarena.http.post("/start_sample", json=task)
    assert (refused.status_code, wrong in refused.json()["detail"]) == (422, True)


def test_a_game_that_ends_without_a_reward_is_a_failure_and_not_a_zero() -> None:
    class Unrewarded(TextArenaEnvironment):
        def _made(self, options: dict[str, Any]) -> Any:
            return self

        def reset(self, **given: Any) -> None: ...

        def get_observation(self) -> Any:
            return 0, [(-1, "Go.")]

        def step(self, move: str) -> Any:
            return True, {}

        def close(self) -> Any:
            return None, {0: {"reason": "over"}}

    game = Unrewarded("Odd-v0")
    assert game.start(1, {}).messages[0]["content"] == "Go."
    with pytest.raises(RuntimeError, match="Odd-v0 ended without a reward of seat 0"):
        game.interact([{"role": "assistant", "content": "x"}])


def test_games_side_by_side_in_one_worker_draw_the_numbers_of_their_own_seed(textarena: Service) -> None:
    def secret_of(*before: str) -> object:
        session, _ = textarena.start("Mastermind-v0", 11)
        other, _ = textarena.start("Mastermind-v0", 12)
        for guess in before:
            textarena.say(other, guess)
        return textarena.say(session, "[1 2 3 4]").json()["messages"]

    assert secret_of() == secret_of("[4 3 2 1]", "[1 2 4 3]")


def test_five_starts_of_one_seed_are_one_game(textarena: Service) -> None:
    """Sokoban draws its room from numpy's global generator, as SpellingBee its letters."""
    games = [textarena.start("Sokoban-v0", 5)[1]["messages"][0]["content"] for _ in range(5)]
    assert len(set(games)) == 1
    assert games[0] != textarena.start("Sokoban-v0", 6)[1]["messages"][0]["content"]


def test_a_game_for_more_than_it_was_begun_with_is_refused(textarena: Service) -> None:
    session, _ = textarena.start("QuantumTicTacToe-v0", 1)
    refused = textarena.say(session, "[0,1]")
    assert (refused.status_code, "expected players" in refused.text) == (422, True), refused.text


def test_a_games_reward_that_is_a_text_is_its_failure(textarena: Service) -> None:
    session, _ = textarena.start("Countdown-v0", 1)
    for _ in range(5):
        answer = textarena.say(session, "I do not know")
        if answer.json()["finish"]:
            break
    assert (answer.json()["status"], "reward of seat 0 is" in answer.text) == ("task error", True), answer.text


def test_a_game_judges_a_number_of_thousands_of_digits(textarena: Service) -> None:
    session, _ = textarena.start("ConnectFour-v0", 1, players=2)
    answer = textarena.say(session, "[" + "9" * 5000 + "]")
    assert answer.status_code == 200, answer.text
