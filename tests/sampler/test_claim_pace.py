"""How many slots a process claims at once, and when it claims again."""

from sampler.core.service.claim_pace import GATHER_S, MANY_PLACES, pause_s, slots_at_once


def test_a_process_claims_for_half_of_its_free_places_and_at_least_one() -> None:
    assert [slots_at_once(free) for free in (1, 2, 3, 8, 256)] == [1, 1, 2, 4, 128]


def test_a_process_with_many_free_places_claims_again_at_once_and_others_gather_them() -> None:
    assert (pause_s(MANY_PLACES + 1), pause_s(MANY_PLACES), pause_s(1)) == (0.0, GATHER_S, GATHER_S)
