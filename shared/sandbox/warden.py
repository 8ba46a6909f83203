"""Runs one sandboxed command: `python -I -S warden.py LIFELINE REPORT SPECIFICATION COMMAND ARGUMENT...`

A guard (`shared.processes.guard`) that confines the command before it begins, and watches it. LIFELINE and REPORT are pipes:
the first closes when the gateway ends or is killed; on the second the warden writes the exceeded limit. SPECIFICATION is JSON.
A server that has tools loaded may fork a warden and call `keep_watch` with a function in place of a command.
Standard library only: there is one warden per start.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

if __name__ == "__main__":  # isolated from every path, so that no folder of a user is imported from
    sys.path.append(os.path.abspath(__file__ + "/../../.."))

from shared.processes.guard import execute, keep
from shared.sandbox.confinement import Confinement, confine
from shared.sandbox.seccomp import FAMILIES, program
from shared.sandbox.watch import Bounds, Watch

SECCOMP_FD = 9  # of the filter that bubblewrap reads


class Specification(NamedTuple):
    """Plain values; `confinement` is None for a container, whose engine confines it."""

    folder: str
    bounds: Bounds
    cgroups: list[str]
    confinement: Confinement | None
    remove: list[str]  # a command that removes what the end of the processes does not end

    def text(self) -> str:
        confinement = self.confinement and self.confinement._asdict()
        return json.dumps({**self._asdict(), "bounds": self.bounds._asdict(), "confinement": confinement})

    @staticmethod
    def of(text: str) -> "Specification":
        values = json.loads(text)
        confinement = values["confinement"] and Confinement(**values["confinement"])
        return Specification(**{**values, "bounds": Bounds(**values["bounds"]), "confinement": confinement})


def keep_watch(lifeline: int, report: int, what: Specification, run: Callable[[], None]) -> None:
    """Does not return: ends with the status of the child that executes `run`, confined, when all its descendants have ended."""
    os.set_inheritable(report, False)
    watch = Watch(what.bounds, what.folder, report, what.cgroups, what.remove)
    keep(lifeline, lambda: _prepare(what.confinement), run, watch)


def _prepare(confinement: Confinement | None) -> None:
    if confinement is None:
        return
    descriptor = None
    if not confinement.whole:
        filled = os.memfd_create("seccomp", 0)
        os.write(filled, program(FAMILIES))
        os.lseek(filled, 0, os.SEEK_SET)
        os.dup2(filled, SECCOMP_FD)
        descriptor = SECCOMP_FD
    confine(confinement, descriptor)


def main() -> None:
    lifeline, report, specification, *command = sys.argv[1:]
    keep_watch(int(lifeline), int(report), Specification.of(specification), lambda: execute(command))


if __name__ == "__main__":
    main()
