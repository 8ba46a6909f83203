"""Runs a program of ours by its module's name, wherever it is started: `python .../run_module.py MODULE ARGUMENTS...`.

Our packages are those next to this file, also in a folder, or with a PYTHONPATH, that has a `shared`, `sampler`, `trainer` or
`tandem` of its own: `python -m` would take those. The working directory is the last place that is searched, for modules of the
user's own.
Needs nothing but Python's library, and no version newer than a worker's (`worker_python`).
"""

import sys

if __name__ == "__main__":  # before any other import: this folder is no place of modules
    del sys.path[0]

import importlib.machinery
import importlib.util
import os
import runpy
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PLACES = [ROOT, os.path.join(ROOT, "scripts")]  # of sources, `tandem` lies in scripts/
PACKAGES = ("sampler", "shared", "trainer", "tandem")


class OurPackages:
    """Finds our packages before any other place is searched; an entry of `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.PathFinder.find_spec(name, PLACES, target) if name in PACKAGES else None


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module` with this Python."""
    return [sys.executable, os.path.abspath(__file__), module, *arguments]


def use_ours() -> None:
    """In this process, from here on."""
    if OurPackages not in sys.meta_path:
        sys.meta_path.insert(0, OurPackages)


def search_working_directory() -> None:
    """Last, so that a module of the user's hides no installed one."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


if __name__ == "__main__":
    use_ours()
    search_working_directory()
    program = sys.argv[1]
    del sys.argv[0]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
