"""reasoning-gym: the adapter against the real package, over the wire. Runs where the package is (`package_services.py`)."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sampler.environments.adapters.reasoning_gym import ReasoningGymEnvironment
from sampler.environments.checked_step import WrongStep, shown
from tests.sampler.environments.package_services import adapters
from tests.sampler.environments.services import Service


@pytest.fixture(scope="module")
def reasoning() -> Iterator[Service]:
    names = ("leg_counting", "basic_arithmetic", "list_functions", "prime_factorization", "boxnet")
    with adapters("reasoning_gym", *names) as found:
        yield found


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


def test_a_family_that_draws_from_the_global_generator_makes_one_task_of_a_seed(reasoning: Service) -> None:
    tasks = [reasoning.start("list_functions", 0)[1]["messages"] for _ in range(3)]
    assert tasks[0] == tasks[1] == tasks[2]
