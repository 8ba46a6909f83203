"""When a folder's size is looked at, by a clock and processor times that the test sets."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.sandbox import watch
from shared.sandbox.watch import Bounds, Watch

OVER = 3 << 20


class Machine:
    """`scan_s`: what reading the folder takes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cpu_s, self.scan_s, self.scans = 1000.0, 0.0, 0.0, 0
        self._folder = folder
        monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(watch, "descendants", lambda pid: [1])
        monkeypatch.setattr(watch, "_usage", lambda pid: (self.cpu_s, 0))
        monkeypatch.setattr(watch, "_ended_cpu_s", lambda: 0.0)
        monkeypatch.setattr(watch, "unlinked_bytes", lambda alive: 0)
        read = watch.folder_bytes

        def slowly(folder: str, enough: int) -> int:
            self.now += self.scan_s
            self.scans += 1
            return read(folder, enough)

        monkeypatch.setattr(watch, "folder_bytes", slowly)
        self.read_end, write_end = os.pipe()
        self.watch = Watch(Bounds(1000.0, 10_000, 100, 2, 10_000.0), str(folder), write_end, [], [])
        os.set_blocking(self.read_end, False)
        self.write_end = write_end

    def write(self) -> None:
        (self._folder / "file").write_bytes(bytes(OVER))

    def ends_within(self, seconds: float) -> bool:
        """Whether a look within this time ends the processes, which do nothing any more."""
        end = self.now + seconds
        while self.now <= end:
            if self.watch.poll(1):
                return True
            self.now += self.watch.next_poll_s or 0.25
        return False


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    one = Machine(tmp_path, monkeypatch)
    yield one
    os.close(one.read_end)
    os.close(one.write_end)


def test_what_is_written_before_the_next_scan_is_due_counts_when_the_processes_are_idle_by_then(
    machine: Machine,
) -> None:
    machine.scan_s, machine.cpu_s = 1.0, 1.0
    assert not machine.watch.poll(1)
    machine.scan_s, machine.cpu_s = 0.0, 2.0
    machine.now += 1.0
    machine.write()
    assert not machine.watch.poll(1)  # a slow scan was just made
    assert machine.ends_within(25.0)


def test_what_costs_less_than_a_tick_counts_within_half_a_minute(machine: Machine) -> None:
    assert not machine.watch.poll(1)
    machine.write()
    assert machine.ends_within(35.0)


def test_a_folder_of_idle_processes_is_read_twice_a_minute_at_most(machine: Machine) -> None:
    assert not machine.ends_within(600.0)
    assert 19 <= machine.scans <= 22
