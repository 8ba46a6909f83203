"""What the launcher says a step will cost: measured at both engines, also while they are busy."""

import asyncio

import pytest

from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.documents.step_cost import StepCost
from tandem.launch.step_cost import probe
from tests.contract.engines import Engine


def service(url: str, status: ServiceStatus = ServiceStatus.UP, *, running: int = 0) -> InferenceService:
    return InferenceService(
        id=url, url=url, policy="main", version=0, status=status, capacity=64, running=running, heartbeat_s=3600
    )


async def test_the_probe_measures_an_engine_and_leaves_it_as_it_was(engine: Engine) -> None:
    found = await probe([service(engine.url), service("http://127.0.0.1:9", ServiceStatus.DOWN)])
    assert found is not None
    assert 1 < found < 1e6
    assert await asyncio.wait_for(probe([service(engine.url, running=8)]), 120) is not None


async def test_an_engine_that_does_not_answer_is_not_measured() -> None:
    assert await probe([]) is None
    assert await probe([service("http://127.0.0.1:9")]) is None


def test_the_sentences_say_episodes_tokens_and_minutes() -> None:
    cost = StepCost(groups=16, generations=8, tokens_each=4096)
    assert cost.size_text() == (
        "a step is 16 groups x 8 = 128 episodes of at most 4,096 sampled tokens: 524,288 tokens at worst"
    )
    assert cost.time_text() is None
    worst = cost.model_copy(update={"tokens_per_s": 70.0}).time_text()
    assert worst is not None
    assert worst.startswith("the engines sample 70 tokens/s: about 2.1 h of sampling for a step, at worst: fewer")
    assert "a smaller max_new_tokens" in worst
    mean = cost.model_copy(update={"tokens_per_s": 7000.0, "mean_tokens": 300.0}).time_text()
    assert mean == "the engines sample 7,000 tokens/s: about 5 s of sampling for a step, 300 tokens an episode so far"


@pytest.mark.parametrize(("seconds", "text"), [(30, "30 s"), (600, "10 min"), (7200, "2.0 h")])
def test_times_are_spoken(seconds: float, text: str) -> None:
    cost = StepCost(groups=1, generations=1, tokens_each=int(seconds), tokens_per_s=1.0)
    assert f"about {text} of" in (cost.time_text() or "")
