"""Gymnasium: the adapter against the real package, over the wire. Runs where the package is (`package_services.py`)."""

from collections.abc import Iterator

import pytest

from tests.sampler.environments.package_services import adapters
from tests.sampler.environments.returned_values import SEEN, WRONG
from tests.sampler.environments.services import Service


@pytest.fixture(scope="module")
def gymnasium() -> Iterator[Service]:
    with adapters(
        "gymnasium",
        *("FrozenLake-v1", "Blackjack-v1", "CartPole-v1", "Pendulum-v1", "Jax=phys2d/CartPole-v1", "Ant-v4"),
        *(
            f"{name}=tests.sampler.environments.registered:{name}-v0"
            for name in (
                "Picture",
                "Codes",
                "Parts",
                "Grows",
                "Capital",
                "Code",
                "Asserts",
                "Wants",
                "Global",
                "Odd",
                "Shows",
            )
        ),
        "Own=gymnasium.envs.toy_text:FrozenLake-v1",
    ) as found:
        yield found


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
            "custom_task has 'option'; expected options, reset, actions, instruction, show, longest_edge; did you mean",
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
            {"show": "text"},
            "100,800 numbers at each step; expected at most 1,000 numbers as text",
        ),
        ("Codes", 0, {}, "1,600 numbers at each step; expected at most 1,000 numbers as text"),
        ("Codes", 0, {"show": "pixels"}, "(40, 40), uint8) (Box), no image; expected text or render"),
        (
            "Picture",
            0,
            {"show": "render"},
            "tests.sampler.environments.registered:Picture-v0 renders nothing; expected",
        ),
        (
            "Blackjack-v1",
            0,
            {"show": ["text", "pixel"]},
            "show has 'pixel'; expected some of text, pixels, render; did you",
        ),
        ("Blackjack-v1", 0, {"show": []}, "show is [] (list); expected one of text, pixels and render"),
        ("Picture", 0, {"longest_edge": 0}, "longest_edge is 0; expected a whole number from 1 on"),
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


def test_a_text_outside_the_worlds_space_costs_no_step_and_is_explained(gymnasium: Service) -> None:
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
