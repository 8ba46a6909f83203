"""Queries follow signals at once, at most so often, and become rarer without them."""

import asyncio
import time
from typing import Any

import pytest

from sampler.core.service.loops import wait_for
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal, Signals


class Silent(Signals):
    """Without a database; `ring` sends one."""

    def __init__(self) -> None:
        self.count = 0
        self.rung = asyncio.Event()

    def received(self, kinds: Any) -> int:
        return self.count

    async def wait(self, kinds: Any, received: int, timeout_s: float) -> bool:
        if self.count == received:
            self.rung.clear()
            await wait_for(self.rung, timeout_s)
        return self.count != received

    def ring(self) -> None:
        self.count += 1
        self.rung.set()


async def pauses(timer: PollTimer, count: int, **options: Any) -> list[float]:
    lengths = []
    for _ in range(count):
        began = time.monotonic()
        await timer.pause(**options)
        lengths.append(time.monotonic() - began)
    return lengths


async def test_without_signals_the_interval_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.store.poll_timer.LONGEST_S", 0.2)
    found = await pauses(PollTimer(Silent(), [Signal.DATA], 0.02), 6)
    assert [round(length, 1) for length in found[3:]] == [0.2, 0.2, 0.2]
    assert found[0] < found[1] < found[2] < found[3]


async def test_after_a_signal_the_interval_is_the_shortest_again() -> None:
    signals = Silent()
    timer = PollTimer(signals, [Signal.DATA], 0.1)
    await pauses(timer, 3)  # 0.1, 0.2, 0.4
    signals.ring()
    began = time.monotonic()
    await timer.pause()
    assert 0.04 < time.monotonic() - began < 0.15  # the last query was a moment ago
    signals.ring()
    assert (await pauses(timer, 2))[1] < 0.15  # without a signal
    await asyncio.sleep(0.15)
    signals.ring()
    assert (await pauses(timer, 1))[0] < 0.05  # at once: the last query was long ago


async def test_a_pause_has_a_limit_and_a_condition() -> None:
    timer = PollTimer(Silent(), [Signal.DATA], 0.02)
    await pauses(timer, 4)
    assert max(await pauses(timer, 3, longest_s=0.05)) < 0.12
    ends = time.monotonic() + 0.3
    await pauses(timer, 1, until=lambda: time.monotonic() > ends)
    assert time.monotonic() - ends < 0.1
