"""Removes protections one at a time, to verify that a test fails without each.

    python -m tests.mutants              # all of them: some minutes
    python -m tests.mutants lease head   # those whose name holds one of the words

A mutant is one change of one file, and the test that has to fail then. Each is made in a copy of the tree in a temporary folder;
the working tree is never touched. The copy is also tested without any change first: a test that fails anyway shows nothing.
Exit status 1, and a line for each, where a mutant lives. `tests/test_mutants.py` checks quickly that the list fits the tree.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutant_rows import MUTANTS
from tests.mutant_rows.mutant import Mutant
from tests.surroundings import python_path

ROOT = Path(__file__).parents[1]
COPIED = ("sampler", "shared", "trainer", "scripts", "tests", "assets", "docs", "pyproject.toml")
INSTALLED = (
    ".games",
    ".mcp_servers",
    ".sglang",
    ".vllm",
    ".axe",
)  # others' programs: tests that find none are skipped, and miss nothing
LIMIT_S = 900.0
HUNG = -1  # two processes that wait for each other, say: killed after LIMIT_S, as a check would be
FAILED = 1  # pytest's exit status where tests failed; others say that they could not run


def main(words: Sequence[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    if not chosen:
        print(f"no mutant's name holds {' or '.join(words)}; expected a word of one of:")
        print("\n".join(mutant.name for mutant in MUTANTS))
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = copied(Path(folder))
        if (status := tested(copy, sorted({mutant.test for mutant in chosen}))) != 0:
            print(f"the tests end with status {status} without any change; expected 0: mend them first")
            return 1
        alive = [mutant for mutant in chosen if not caught(copy, mutant)]
    print(f"mutants={len(chosen)} alive={len(alive)}")
    return 1 if alive else 0


def copied(folder: Path) -> Path:
    """The tree without what is generated or installed. Tools of MCP-Docker read it as users of their own."""
    folder.chmod(0o755)
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        else:
            shutil.copy2(source, target)
    for name in INSTALLED:
        if (ROOT / name).exists():
            (folder / name).symlink_to((ROOT / name).resolve())
    return folder


def caught(copy: Path, mutant: Mutant) -> bool:
    """Does the mutant's test fail with it?"""
    file = copy / mutant.file
    before = file.read_text(encoding="utf-8")
    if before.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.file}: {mutant.old!r} stands there {before.count(mutant.old)} times; expected once")
    file.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status = tested(copy, [mutant.test])
    finally:
        file.write_text(before, encoding="utf-8")
    verdict = {FAILED: "caught", HUNG: "caught, by a hang", 0: "ALIVE"}.get(
        status, f"ALIVE? pytest ended with status {status}"
    )
    print(f"{verdict:8} {mutant.name} ({mutant.file})", flush=True)
    return status in (FAILED, HUNG)


def tested(copy: Path, tests: Sequence[str]) -> int:
    """pytest's exit status, or HUNG. Nothing is taken from the original tree, and no compiled file outlives a change."""
    environment = os.environ | {"PYTHONPATH": python_path(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=copy, env=environment, start_new_session=True, **silent) as running:
        try:
            return running.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            return HUNG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
