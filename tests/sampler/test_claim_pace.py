"""How often a process claims."""

import pytest

from sampler.core.service.claim_pace import GATHER_S, pause_s, slots_at_once


@pytest.mark.parametrize(("free", "places", "pause"), [
    (100, 100, 0.0), (9, 100, 0.0), (8, 100, GATHER_S), (1, 100, GATHER_S),
    (5, 5, 0.0), (3, 5, 0.0), (2, 5, GATHER_S), (4, 8, GATHER_S), (1, 1, 0.0),
])  # fmt: skip
def test_a_process_waits_only_where_few_of_its_places_are_free(free: int, places: int, pause: float) -> None:
    assert pause_s(free, places) == pause


@pytest.mark.parametrize(("free", "slots"), [(1, 1), (2, 1), (3, 2), (8, 4), (100, 50)])
def test_a_claim_is_for_half_of_the_free_places(free: int, slots: int) -> None:
    assert slots_at_once(free) == slots
