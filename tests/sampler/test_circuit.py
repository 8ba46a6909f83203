"""Retries of a failed tool server, with a simulated clock."""

import asyncio

from sampler.core.tools.circuit import FIRST_REST_S, MAX_REST_S, Circuit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_pause_doubles_with_every_failure_up_to_a_minute_and_then_one_session_tries() -> None:
    clock = Clock()
    circuit = Circuit(clock)
    rests = []
    for _ in range(10):
        assert circuit.enter()
        circuit.failed(circuit.generation, "refused")
        assert not circuit.enter(), "it rests"
        rests.append(circuit.rest_s())
        clock.now += rests[-1]
        assert not circuit.is_closed
    assert rests == [min(MAX_REST_S, FIRST_REST_S * 2**n) for n in range(10)]
    assert (circuit.enter(), circuit.enter()) == (True, False), "the second waits for what comes of the first"
    circuit.opened()
    assert circuit.is_closed
    assert (circuit.enter(), circuit.enter()) == (True, True)


def test_sessions_that_fail_together_count_once_and_late_reports_are_ignored() -> None:
    clock = Clock()
    circuit = Circuit(clock)
    began = circuit.generation
    for _ in range(200):
        circuit.failed(began, "refused")
    assert (circuit.failures, circuit.rest_s()) == (1, FIRST_REST_S)
    clock.now += FIRST_REST_S
    assert circuit.enter()
    circuit.failed(began, "an old session's call")
    assert circuit.is_tried, "the trial goes on"
    circuit.opened()
    circuit.failed(began, "another one's")
    assert circuit.is_closed


def test_pauses_grow_while_sessions_open_and_then_fail_until_one_works() -> None:
    clock = Clock()
    circuit = Circuit(clock)
    rests = []
    for used in (False, False, False, True, False):
        assert circuit.enter()
        generation = circuit.generation
        circuit.opened()
        if used:
            circuit.answered()
        circuit.failed(generation, "a call died")
        rests.append(circuit.rest_s())
        clock.now += rests[-1]
    assert rests == [FIRST_REST_S * factor for factor in (1, 2, 4, 1, 2)]


def test_a_busy_server_is_paused_as_requested_without_counting_a_failure() -> None:
    clock = Clock()
    circuit = Circuit(clock)
    circuit.busy(circuit.generation, 7.0, "HTTP 503")
    assert (circuit.failures, circuit.rest_s(), circuit.enter()) == (0, 7.0, False)
    clock.now += 7
    assert circuit.enter()
    assert circuit.away_s() == 7


async def test_waiters_wake_when_a_trial_ends_and_a_cancelled_trial_passes_to_another() -> None:
    clock = Clock()
    circuit = Circuit(clock)
    circuit.failed(circuit.generation, "refused")
    clock.now += FIRST_REST_S
    assert circuit.enter()
    waiting = [asyncio.create_task(circuit.changed(600)) for _ in range(3)]
    await asyncio.sleep(0)
    circuit.left()
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert circuit.enter()
