"""Settings that `tandem plan` proposes: by speed, by memory, and never against what is given."""

from collections.abc import Mapping

import pytest

from tandem.launch.trainer_memory import MemoryParts, TrainedAs
from tandem.plan.proposal import PlannedStep, Proposal, propose
from tandem.plan.speed import Speed, measured

GIVEN = PlannedStep(groups=16, generations=8, tokens=10, prompt=20, at_once=4)
SHAPE = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"num_hidden_layers": 3, "vocab_size": 500},
}


def speed(times: float) -> Speed:
    """A group of 8 takes 1 s of sampling (2 rounds of 4, 10 tokens, 50 ms) and 1 s of learning, times this."""
    return Speed(step=0.03 * times, row=0.005 * times, token=0.006 * times, head=0.005 * times)


def parts(way: TrainedAs, row: int) -> MemoryParts:
    weights = 400 if way.base_quantization == "none" else 100
    return MemoryParts(weights, 0, 0, 0 if way.lora_rank else 800, activations=row)


def proposed(given: Mapping[str, object] = {}, room: int = 10_000) -> Proposal:
    return propose(GIVEN, TrainedAs(), given, parts, room=room)


def test_a_step_counts_a_groups_prompt_once_and_rounds_of_those_that_wait() -> None:
    assert GIVEN.computed == 16 * 20 + 128 * 10
    assert GIVEN.sampling_s(speed(1.0)) == pytest.approx(32 * 10 * 0.05)
    assert GIVEN.learning_s(speed(1.0)) == pytest.approx(1600 * 0.006 + 1280 * 0.005)


def test_small_steps_are_proposed() -> None:
    found = proposed().step
    assert (found.groups, found.generations, found.tokens) == (2, GIVEN.generations, GIVEN.tokens)


@pytest.mark.parametrize(
    ("room", "rank", "base", "row", "fits"),
    [
        (3248, 0, "none", 2048, True),
        (3247, 0, "none", 1024, True),
        (1711, 16, "none", 1024, True),
        (911, 16, "nf4", 512, True),
        (100, 16, "nf4", 512, False),
    ],
)
def test_memory_decides_what_is_trained(room: int, rank: int, base: str, row: int, *, fits: bool) -> None:
    found = proposed(room=room)
    assert (found.trained.lora_rank, found.trained.base_quantization, found.row, found.fits) == (rank, base, row, fits)
    assert found.rate == (1e-4 if rank else 1e-5)


def test_what_is_given_stays() -> None:
    found = proposed({"groups_per_step": 16, "lora_rank": 0, "max_tokens_per_row": 4096}, room=100)
    assert (found.step, found.trained, found.row, found.fits) == (GIVEN, TrainedAs(), 4096, False)


def test_a_speed_is_measured_from_a_models_shape() -> None:
    found = measured(SHAPE, threads=1)
    assert min(found.step, found.token, found.head) > 0 <= found.row
    with pytest.raises(KeyError, match="intermediate_size"):
        measured({name: value for name, value in SHAPE.items() if name != "intermediate_size"}, threads=1)
