"""Seconds by phase, stored in a file and summed over all launches of a run."""

import json
import time
from pathlib import Path

from shared.files.written_file import write_text_whole


class PhaseClock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        self._phase: tuple[str, float] | None = None

    def record(self, name: str, seconds: float | None) -> None:
        if seconds is not None:
            self.seconds[name] = seconds

    def begin(self, phase: str) -> None:
        self.end()
        self._phase = (phase, time.monotonic())

    def end(self) -> None:
        """End the phase and write its duration."""
        if self._phase is not None:
            phase, since = self._phase
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - since
            self._phase = None
        write_text_whole(self._path, json.dumps(self.seconds) + "\n", public=True)
