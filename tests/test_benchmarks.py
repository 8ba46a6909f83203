"""Every benchmark runs with `--quick`, ends with 0, shows a table and writes the figures that its first lines promise. No timing
is looked at: what a benchmark measures is another matter."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    path.stem
    for path in (ROOT / "scripts" / "bench").glob("*.py")
    if re.search(r"(parsed|run_parts)\(parser", path.read_text(encoding="utf-8")) and path.stem != "results"
}
TIMEOUT_S = 600  # a busy machine is no failure
pytestmark = [pytest.mark.timeout(2 * TIMEOUT_S), pytest.mark.slow]


def figures(folder: Path, name: str, *arguments: str) -> Any:
    """What `python -m scripts.bench.NAME --quick` writes with `--json`."""
    path = folder / f"{name}.json"
    command = [sys.executable, "-m", f"scripts.bench.{name}", *arguments, "--quick", "--json", str(path)]
    environment = os.environ | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "┃" in done.stdout, "a table is shown"
    return json.loads(path.read_text(encoding="utf-8"))


def rows(name: str, *columns: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        found = figures(folder, name)
        assert found
        for row in found:
            assert set(columns) <= row.keys(), row

    return run


def tree(folder: Path) -> None:
    (found,) = figures(folder, "tree")
    assert {"kind", "ways", "fixed_s", "share", "bound"} <= found.keys()
    tokens = {way: figure["tokens"] for way, figure in found["ways"].items()}
    assert tokens["none"] > tokens["linear"] >= tokens["tree"]


def publish(folder: Path) -> None:
    found = figures(folder, "publish")
    assert [row["mode"] for row in found] == ["full", "delta", "adapter"]
    assert all(row["same bits"] for row in found)
    assert found[2]["ratio"] > 1


def sampler(folder: Path) -> None:
    found = figures(folder, "sampler")
    assert found.keys() == {"load", "turns mcp 20", "commands mcp 20"}
    few, more = found["turns mcp 20"]
    assert 0 < few["commands/record"] < more["commands/record"], "a turn costs commands, and they are counted"


def mcp_docker(folder: Path) -> None:
    found = figures(folder, "mcp_docker", "--parts", "open", "calls", "start", "soak", "growth")["calculator"]
    speed, soak = found["speed"], found["soak"]
    assert [row["sessions so far"] for row in found["growth"]][-1] == 12
    assert [row["number"] for row in speed["rows"]] == [4, 4, 40, 4]
    assert speed["memory"]["open sessions"] == 4
    assert (soak["sessions"], soak["broken off"], soak["gateway kills"]) == (12, 4, 2)
    assert soak["left over"] == speed["left over"] == {"processes": 0, "folders": 0, "cgroups": 0}
    bundled = ("python", "shell", "files", "sql", "search", "fetch")
    others = figures(folder, "mcp_docker", "--tools", *bundled)
    for name in bundled:
        assert {row["what"]: row["number"] for row in others[name]["speed"]["rows"]}["call, 2 callers"] == 40
        assert others[name]["speed"]["left over"]["processes"] == 0


def gateway(folder: Path) -> None:
    found = figures(folder, "gateway")
    (row,) = found["turns"]
    assert (row["at once"], row["streamed"]) == (4, "yes")
    assert all(row[f"{name} ms"] > 0 for name in ("sampler", "agents", "gateway"))
    (held,) = found["open"]
    assert held["sessions"] == 8
    assert held["MiB after"] > held["MiB before"] > 0


def environments(folder: Path) -> None:
    found = figures(folder, "environments")
    assert [row["sessions open"] for row in found["open"]] == [1, 40]
    assert all(row["steps/s"] > 0 and row["CPU ms/step"] >= 0 for row in found["open"])
    assert found["processes"][0]["processes"] == 7, "three workers, a guard of each, and the service"
    (trouble,) = found["trouble"]
    assert (trouble["played"], trouble["failed otherwise"], trouble["workers killed"]) == (30, 0, 1)
    left = [row["processes left"] for part in found.values() for row in part]
    assert (trouble["sessions left"], left) == (0, [0] * len(left))


CHECKS: dict[str, Callable[[Path], None]] = {
    "environments": environments,
    "gateway": gateway,
    "mcp_docker": mcp_docker,
    "math_verdicts": rows("math_verdicts", "kind", "pairs", "ours: wrong 1", "boxed: wrong 0", "verl: wrong 1"),
    "memory": rows("memory", "shape", "tokens", "peak_mib", "bytes_per_token", "forward_s", "backward_s", "cpu_s"),
    "publish": publish,
    "sampler": sampler,
    "simulate_staleness": rows(
        "simulate_staleness",
        *("set aside %", "of slowest %", "all", "trained", "apart %", "midway %", "staleness", "step"),
    ),
    "tree": tree,
}


# The others compute for 10 s to a minute each.
SHORT = {"simulate_staleness"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.thorough) for name in sorted(CHECKS)]
)
def test_a_benchmark_runs_to_its_end_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    CHECKS[name](tmp_path)


def test_every_program_of_the_benchmarks_is_run_here() -> None:
    assert CHECKS.keys() == PROGRAMS
    for name in PROGRAMS:
        text = (ROOT / "scripts" / "bench" / f"{name}.py").read_text(encoding="utf-8")
        assert re.search(r"--quick", text.partition('"""\n')[0]), f"{name}'s first lines do not name --quick"
