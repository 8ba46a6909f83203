"""Adapters against the real packages, over the wire. Each runs where its package is installed: here, in the environment of
GAMES_PYTHON, or in that of scripts/setup_games.sh, which scripts/check makes."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sampler.environments.adapters.reasoning_gym import ReasoningGymEnvironment
from sampler.environments.adapters.textarena import TextArenaEnvironment
from sampler.environments.checked_step import WrongStep, shown
from tests.sampler.environments.returned_values import SEEN, WRONG
from tests.sampler.environments.services import Service, service

INSTALLED = Path(__file__).parents[3] / ".games" / "venv" / "bin" / "python"


def python_with(package: str) -> str:
    """A Python that has the package; skips the test without one."""
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    other = os.environ.get("GAMES_PYTHON") or str(INSTALLED)
    if (
        Path(other).exists()
        and subprocess.run([other, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0
    ):
        return other
    pytest.skip(
        f"{package} is not installed here, nor for GAMES_PYTHON, a Python that has it: run scripts/setup_games.sh"
    )


@contextmanager
def adapters(package: str, *names: str) -> Iterator[Service]:
    kinds = ",".join(f"{name.rpartition('=')[0] or name}={package}:{name.rpartition('=')[2]}" for name in names)
    with service("--workers", "1", "--worker_python", python_with(package), "--environments", kinds) as found:
        yield found


@pytest.fixture(scope="module")
def gymnasium() -> Iterator[Service]:
    with adapters(
        "gymnasium",
        *("FrozenLake-v1", "Blackjack-v1", "CartPole-v1", "Pendulum-v1", "Jax=phys2d/CartPole-v1", "Ant-v4"),
        *(
            f"{name}=tests.sampler.environments.registered:{name}-v0"
            for name in ("Picture", "Parts", "Grows", "Capital", "Code", "Asserts", "Wants", "Global", "Odd", "Shows")
        ),
        "Own=gymnasium.envs.toy_text:FrozenLake-v1",
    ) as found:
        yield found


@pytest.fixture(scope="module")
def reasoning() -> Iterator[Service]:
    names = ("leg_counting", "basic_arithmetic", "list_functions", "prime_factorization", "boxnet")
    with adapters("reasoning_gym", *names) as found:
        yield found


@pytest.fixture(scope="module")
def textarena() -> Iterator[Service]:
    names = ("TowerOfHanoi-v0", "TicTacToe-v0", "Mastermind-v0", "Nim-v0", "Sokoban-v0")
    with adapters("textarena", *names, "QuantumTicTacToe-v0", "Countdown-v0", "ConnectFour-v0") as found:
        yield found


# ---------------------------------------------------------------------- gymnasium


def test_a_walk_over_the_lake_ends_with_the_worlds_reward(gymnasium: Service) -> None:
    session, step = gymnasium.start("FrozenLake-v1", 1, options={"is_slippery": False})
    assert "Reply with one action: left, down, right, up." in step["messages"][0]["content"]
    assert "[S]FFF" in step["messages"][0]["content"], "where the walker is, without a terminal's colors"
    lost = gymnasium.say(session, "I do not know").json()
    assert (lost["reward"], lost["metrics"]) == (0.0, {"world_steps": 0, "invalid_actions": 1})
    for action in ("down", "I go DOWN.", "<action>2</action> and not left", "right", "down"):
        step = gymnasium.say(session, action).json()
        assert (step["status"], step["reward"]) == ("running", 0.0)
    end = gymnasium.say(session, "right").json()
    assert (end["status"], end["reward"], end["metrics"]["world_steps"]) == ("completed", 1.0, 6)


def test_a_seed_is_a_world(gymnasium: Service) -> None:
    looks = [gymnasium.start("Blackjack-v1", seed)[1]["messages"][0]["content"] for seed in (1, 1, 2, 3, 4)]
    assert looks[0] == looks[1]
    assert len(set(looks)) > 2


def test_a_worlds_own_limit_of_steps_is_its_limit(gymnasium: Service) -> None:
    session, _ = gymnasium.start("CartPole-v1", 1, options={"max_episode_steps": 2})
    assert gymnasium.say(session, "left").json()["status"] == "running"
    assert gymnasium.say(session, "right").json()["status"] == "task limit reached"


@pytest.mark.parametrize(
    ("name", "index", "custom", "told"),
    [
        ("Pendulum-v1", 0, {}, "expected a discrete or a text space"),
        ("FrozenLake-v1", 0, {"options": {"lava": 1}}, "with options {'lava': 1}"),
        ("FrozenLake-v1", "first", {}, "expected a whole number, which is the seed"),
        ("FrozenLake-v1", 0, {"actions": ["a"]}, "expected 4, one for each action"),
        ("FrozenLake-v1", -2, {}, "index is -2; expected a whole number"),
        ("FrozenLake-v1", -1, {}, "index is -1; expected a number from 0 on"),
        ("FrozenLake-v1", -1, {"index": -1}, "index is -1; expected a whole number"),
        ("FrozenLake-v1", 0, {"options": {"map_name": "9x9"}}, "with options {'map_name': '9x9'}: KeyError: '9x9'"),
        (
            "FrozenLake-v1",
            0,
            {"option": {}},
            "custom_task has 'option'; expected options, reset, actions, instruction; did you mean",
        ),
        ("FrozenLake-v1", 0, {"Options": {}}, "did you mean 'options'?"),
        ("FrozenLake-v1", 0, {"seed": 3}, "custom_task has 'seed'; expected options"),
        ("FrozenLake-v1", 0, {"options": [1]}, "options is [1] (list); expected an object"),
        ("FrozenLake-v1", 0, {"options": "x"}, "options is 'x'; expected an object"),
        ("FrozenLake-v1", 0, {"options": {"render_mode": "human"}}, "options has 'render_mode'; expected none"),
        ("FrozenLake-v1", 0, {"actions": "abcd"}, "actions is 'abcd'; expected a list of texts"),
        ("FrozenLake-v1", 0, {"actions": ["a", "b", "c", "b"]}, "actions.3 is 'b' again; expected 4 different names"),
        (
            "FrozenLake-v1",
            0,
            {"actions": ["a", "b", "c", " "]},
            "actions.3 is ' '; expected a name with a letter or a digit",
        ),
        ("Capital", 0, {"actions": ["a"]}, "actions is given, but"),
        ("Asserts", 0, {}, "AssertionError: a world of its own"),
        ("Wants", 0, {"reset": {"low": "x"}}, "cannot begin with reset {'low': 'x'}"),
        (
            "Picture",
            0,
            {},
            "100,800 numbers at each step; expected at most 1,000 numbers: images are not supported yet",
        ),
    ],
)
def test_what_a_world_lacks_is_refused_with_a_sentence(
    gymnasium: Service, name: str, index: int | str, custom: dict[str, object], told: str
) -> None:
    answer = gymnasium.http.post("/start_sample", json={"name": name, "index": index, "custom_task": custom})
    assert (answer.status_code, told in answer.text) == (422, True), answer.text


def test_a_world_that_a_module_registers_is_played_by_module_and_id_and_its_observations_are_json(
    gymnasium: Service,
) -> None:
    session, step = gymnasium.start("Parts")
    shown = step["messages"][0]["content"]
    assert shown.startswith("You play Parts-v0.")
    assert shown.endswith('Observation: {"at": 3, "grid": [[0, 0], [0, 0]], "mission": "find it"}')
    assert gymnasium.say(session, "1").json()["reward"] == 0.5, "numpy's number"
    assert gymnasium.http.get("/get_indices", params={"name": "Parts"}).status_code == 200
    assert "[S]FFF" in gymnasium.start("Own")[1]["messages"][0]["content"], "also of gymnasium's own modules"


def test_a_module_that_is_not_there_ends_the_start_of_the_service(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="it ended with status 2"), adapters("gymnasium", "Lake=nowhere:Lake-v1"):
        pass
    assert "gymnasium:nowhere:Lake-v1 cannot be loaded by" in capfd.readouterr().err


def test_an_observation_that_is_larger_than_its_world_says_fails_the_episode_once(gymnasium: Service) -> None:
    answer = gymnasium.http.post("/start_sample", json={"name": "Grows", "index": 0})
    assert (answer.status_code, answer.json()["final"], answer.json()["status"]) == (200, True, "task error")
    assert "an observation of 1,600 numbers" in answer.text


@pytest.mark.parametrize("reply", ["<action>Paris</action>", "<action> Paris\n</action>", "Paris"])
def test_a_text_action_is_sent_as_the_model_wrote_it(gymnasium: Service, reply: str) -> None:
    session, _ = gymnasium.start("Capital")
    end = gymnasium.say(session, reply).json()
    assert (end["status"], end["reward"]) == ("completed", 1.0)


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("<action>    a = 1\n    b = 1</action>", True),
        ("<action>\n    a = 1\n    b = 1\n</action>", False),  # the world takes ends of lines: as the model wrote it
        ("    a = 1\n    b = 1", True),
        ("<action>CRANE</action>", True),
        ("CRANE", True),
        ("<action>crane</action>", False),
    ],
)
def test_blanks_and_capitals_of_a_text_action_reach_the_world(gymnasium: Service, said: str, sent: bool) -> None:
    session, _ = gymnasium.start("Code")
    assert gymnasium.say(session, said).json()["reward"] == float(sent)


def test_a_text_that_a_world_does_not_take_costs_no_step_and_is_said(gymnasium: Service) -> None:
    session, _ = gymnasium.start("Code")
    step = gymnasium.say(session, "<action>Paris!</action>").json()
    assert step["metrics"] == {"world_steps": 0, "invalid_actions": 1}
    assert step["messages"][0]["content"].startswith(
        "'Paris!' (6 characters) is no action; expected 1 to 40 characters of '\\n +1=ACENRabc"
    )


def test_options_of_the_worlds_reset_are_passed_on(gymnasium: Service) -> None:
    assert "Observation: 4" in gymnasium.start("Wants", reset={"low": 4})[1]["messages"][0]["content"]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_value_is_the_last_step_of_its_session_and_named_by_field(gymnasium: Service, number: int) -> None:
    session, _ = gymnasium.start("Odd")
    answer = gymnasium.say(session, str(number))
    step = answer.json()
    assert (answer.status_code, step["status"], step["final"]) == (200, "task error", True), answer.text
    assert WRONG[number][0] in step["result"]
    assert "; expected " in step["result"]
    assert gymnasium.say(session, "0").status_code == 404, "its session is over"


@pytest.mark.parametrize("number", range(len(SEEN)))
def test_whatever_a_world_shows_is_plain_text_to_the_model(gymnasium: Service, number: int) -> None:
    session, _ = gymnasium.start("Shows")
    assert gymnasium.say(session, str(number)).json()["messages"][0]["content"] == SEEN[number][2]


def test_worlds_of_global_generators_draw_the_numbers_of_their_own_seed(gymnasium: Service) -> None:
    def drawn(others: bool) -> list[str]:
        session, step = gymnasium.start("Global", 7)
        other, _ = gymnasium.start("Global", 8)
        shown = [step["messages"][0]["content"]]
        for _ in range(3):
            if others:
                gymnasium.say(other, "0")
            shown.append(gymnasium.say(session, "0").json()["messages"][0]["content"])
        return shown

    alone = drawn(others=False)
    assert (alone == drawn(others=True), len(set(alone))) == (True, 4)
    assert alone[0] != gymnasium.start("Global", 8)[1]["messages"][0]["content"]


def test_a_map_that_a_world_draws_as_it_is_made_is_that_of_the_seed(gymnasium: Service) -> None:
    """Without a generator of its own yet."""
    lakes = [
        gymnasium.start("FrozenLake-v1", seed, options={"map_name": None})[1]["messages"][0]["content"]
        for seed in (3, 3, 3, 4)
    ]
    assert (len(set(lakes[:3])), len(set(lakes))) == (1, 2)


# ---------------------------------------------------------------------- reasoning-gym


def test_a_family_makes_a_task_from_a_seed_and_scores_the_answer(reasoning: Service) -> None:
    session, step = reasoning.start("leg_counting", 3)
    assert [message["role"] for message in step["messages"]] == ["system", "user"]
    assert reasoning.start("leg_counting", 3)[1] == step
    wrong = reasoning.say(session, "<answer>1000000</answer>").json()
    assert (wrong["status"], wrong["reward"] < 0.5, wrong["metrics"]["formatted"]) == ("completed", True, 1.0)
    again, _ = reasoning.start("leg_counting", 3)
    right = reasoning.say(again, f"So: <answer>{wrong['result']['expected']}</answer>").json()
    assert right["reward"] == right["metrics"]["score"] == 1.0


@pytest.mark.parametrize(("family", "said"), [("prime_factorization", "["), ("boxnet", "7")])
def test_an_answer_that_a_familys_scorer_cannot_read_is_worth_0(reasoning: Service, family: str, said: str) -> None:
    session, _ = reasoning.start(family, 1)
    step = reasoning.say(session, f"<answer>{said}</answer>").json()
    assert (step["status"], step["reward"]) == ("completed", 0.0)
    assert step["result"]["unreadable"].startswith(("ValueError: ", "TypeError: "))


def test_a_scorer_that_raises_at_the_right_answer_too_is_a_failure() -> None:
    world = ReasoningGymEnvironment("any")
    own: dict[str, Any] = {"_family": _Broken(), "_entry": {"answer": "1"}}
    vars(world).update(own)
    with pytest.raises(ZeroDivisionError):
        world.interact([{"role": "assistant", "content": "1"}])


def test_a_score_that_is_no_number_is_the_packages_failure_in_words() -> None:
    world = ReasoningGymEnvironment("any")
    for wrong in (None, float("nan"), 1j, "1"):
        vars(world).update(
            {"_family": SimpleNamespace(score_answer=lambda *_, wrong=wrong: wrong), "_entry": {"answer": "1"}}
        )
        with pytest.raises(WrongStep, match=f"the score of any is {re.escape(shown(wrong))}; expected a finite number"):
            world.interact([{"role": "assistant", "content": "1"}])


class _Broken:
    def score_answer(self, answer: str, entry: object) -> float:
        raise ZeroDivisionError


def test_a_level_of_the_curriculum_makes_a_harder_task(reasoning: Service) -> None:
    lengths = [len(reasoning.start("leg_counting", 5, level=level)[1]["messages"][1]["content"]) for level in (0, 2, 4)]
    assert lengths == sorted(set(lengths)), "each level has more in it"
    refused = reasoning.http.post(
        "/start_sample", json={"name": "leg_counting", "index": 1, "custom_task": {"config": {"legs": 1}}}
    )
    assert (refused.status_code, "cannot make leg_counting" in refused.text) == (422, True)


# ---------------------------------------------------------------------- textarena

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


@pytest.mark.parametrize(
    ("custom", "wrong"),
    [
        ({"confg": {}}, "custom_task has 'confg'; expected config, level; did you mean 'config'?"),
        ({"seed": 3}, "custom_task has 'seed'"),
        ({"config": {"seed": 3}}, "config has 'seed'; expected none: the index is the seed"),
        ({"config": "x"}, "config is 'x'; expected an object"),
        ({"level": "hard"}, "level is 'hard'; expected a whole number from 0 on"),
        ({"level": -1}, "level is -1; expected a whole number from 0 on"),
    ],
)
def test_fields_that_a_family_does_not_have_are_refused(
    reasoning: Service, custom: dict[str, object], wrong: str
) -> None:
    refused = reasoning.http.post("/start_sample", json={"name": "leg_counting", "index": 1, "custom_task": custom})
    assert (refused.status_code, wrong in refused.json()["detail"]) == (422, True), refused.text


# ---------------------------------------------------------------------- what weak models say, and packages do


def test_a_number_of_100_000_digits_is_no_action(gymnasium: Service) -> None:
    session, _ = gymnasium.start("FrozenLake-v1", 1)
    said = gymnasium.say(session, "9" * 100_001)
    assert (said.status_code, said.json().get("metrics")) == (200, {"world_steps": 0, "invalid_actions": 1}), said.text


def test_the_name_of_an_action_may_have_several_words(gymnasium: Service) -> None:
    names = ["go left", "go left-down", "to 3", "up"]
    session, step = gymnasium.start("FrozenLake-v1", 1, options={"is_slippery": False}, actions=names)
    assert "Reply with one action: go left, go left-down, to 3, up." in step["messages"][0]["content"]
    for said, place in (("Go left-down!", 4), ("go left", 4), ("go left-down", 8), ("I choose to 3", 9)):
        assert f"Observation: {place}" in gymnasium.say(session, said).json()["messages"][0]["content"]


@pytest.mark.parametrize(("name", "world"), [("Jax", "phys2d/CartPole-v1"), ("Ant-v4", "Ant-v4")])
def test_what_this_python_cannot_load_is_refused_and_not_tried_again(gymnasium: Service, name: str, world: str) -> None:
    """Their modules raise as they are imported, one of them what is no ImportError."""
    made = gymnasium.http.post("/start_sample", json={"name": name, "index": 0})
    assert (made.status_code, f"cannot make {world}" in made.text) == (422, True), made.text


def test_a_family_that_draws_from_the_global_generator_makes_one_task_of_a_seed(reasoning: Service) -> None:
    tasks = [reasoning.start("list_functions", 0)[1]["messages"] for _ in range(3)]
    assert tasks[0] == tasks[1] == tasks[2]


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
