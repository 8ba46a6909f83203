"""Adaptive concurrency: how the number of episodes follows what the engines report."""

from dataclasses import dataclass, field

import pytest

from sampler.core.service.concurrency import Concurrency, LoadReport


@dataclass
class Simulated:
    """An engine with `places`, and samplers that fill their limit; an episode ends in each of them every other report."""

    places: int
    samplers: list[Concurrency]
    busy: list[int] = field(default_factory=list)
    time: int = 0

    def report(self) -> LoadReport:
        load = sum(self.busy)
        running = min(load, self.places)
        return LoadReport(self.time, running, load - running, self.places, token_usage=0.8 * running / self.places)

    def step(self) -> LoadReport:
        self.busy = self.busy or [0] * len(self.samplers)
        self.time += 1
        report = self.report()
        for i, sampler in enumerate(self.samplers):
            limit = sampler.update(report, self.busy[i])
            self.busy[i] = limit if self.busy[i] <= limit else self.busy[i] - self.time % 2
        return report


@pytest.mark.parametrize(("places", "samplers"), [(16, 1), (64, 1), (512, 1), (64, 4), (9, 4)])
def test_a_full_engine_is_kept_full_and_its_queue_short(places: int, samplers: int) -> None:
    engine = Simulated(places, [Concurrency(1024, adaptive=True) for _ in range(samplers)])
    reports = [engine.step() for _ in range(400)]
    assert max(r.waiting for r in reports) <= max(8 * samplers, places), "while it is still looking for its number"
    settled = reports[200:]
    assert sum(r.running for r in settled) / (200 * places) > 0.93
    assert sum(r.waiting for r in settled) / 200 <= 0.3 * places + 2 * samplers
    if samplers > 1:
        assert min(engine.busy) >= max(engine.busy) / 4, f"no sampler is starved: {engine.busy}"


def test_a_large_engine_is_filled_within_seconds() -> None:
    engine = Simulated(512, [Concurrency(1024, adaptive=True)])
    reports = [engine.step() for _ in range(15)]
    assert reports[-1].running > 0.9 * 512


def test_the_ceiling_is_never_exceeded_and_a_fixed_limit_stays_fixed() -> None:
    for adaptive in (True, False):
        sampler = Concurrency(20, adaptive=adaptive)
        engine = Simulated(512, [sampler])
        assert {engine.step() and sampler.limit for _ in range(50)} <= set(range(8, 21) if adaptive else [20])
        assert sampler.limit == 20


def test_the_limit_grows_only_on_a_new_report_and_with_all_places_used() -> None:
    sampler = Concurrency(100, adaptive=True)
    idle = LoadReport(stamp=1, running=0, waiting=0, capacity=64)
    assert sampler.update(idle, busy=3) == 8  # five places are not used: more would not help
    grown = sampler.update(LoadReport(stamp=2, running=8, waiting=0, capacity=64), busy=8)
    assert grown == 16
    assert (
        sampler.update(LoadReport(stamp=2, running=8, waiting=0, capacity=64), busy=16) == 16
    )  # the same report again


def test_a_cut_waits_for_the_effect_of_the_last_one() -> None:
    sampler = Concurrency(100, adaptive=True)
    sampler.limit = 40
    jam = {"running": 10, "waiting": 30, "capacity": 10}
    assert sampler.update(LoadReport(stamp=1, **jam), busy=40) == 20
    assert sampler.update(LoadReport(stamp=2, **jam), busy=40) == 20  # those beyond the cut are still playing
    assert sampler.update(LoadReport(stamp=3, running=10, waiting=10, capacity=10), busy=20) == 13


@pytest.mark.parametrize(
    "report",
    [
        LoadReport(stamp=2, running=10, waiting=5, capacity=10),
        LoadReport(stamp=2, running=10, waiting=0, capacity=100, token_usage=0.97),
        LoadReport(stamp=2, running=10, waiting=0, capacity=100, token_latency_s=0.2),
    ],
    ids=["queue", "cache", "latency"],
)
def test_each_kind_of_overload_shrinks_the_limit_to_no_less_than_one(report: LoadReport) -> None:
    sampler = Concurrency(100, adaptive=True)
    sampler.update(LoadReport(stamp=1, running=8, waiting=0, capacity=100, token_latency_s=0.01), busy=8)
    before = sampler.limit
    assert sampler.update(report, busy=before) < before
    one = Concurrency(1, adaptive=True)
    one.update(LoadReport(stamp=1, running=8, waiting=0, capacity=100, token_latency_s=0.01), busy=1)
    assert one.update(report, busy=1) == 1


def test_a_cache_that_fills_up_is_approached_slowly() -> None:
    sampler = Concurrency(1000, adaptive=True)
    sampler.limit = 100
    assert sampler.update(LoadReport(stamp=1, running=100, waiting=0, capacity=4096, token_usage=0.75), busy=100) == 109


def test_lastingly_high_latency_becomes_the_new_baseline() -> None:
    """Replies may become short and prompts long: the limit must not stay low for ever."""
    sampler = Concurrency(64, adaptive=True)
    sampler.update(LoadReport(stamp=0, running=8, waiting=0, capacity=100, token_latency_s=0.001), busy=8)
    for stamp in range(1, 200):
        slow = LoadReport(stamp=stamp, running=sampler.limit, waiting=0, capacity=100, token_latency_s=0.1)
        sampler.update(slow, busy=sampler.limit)
    assert sampler.limit == 64
