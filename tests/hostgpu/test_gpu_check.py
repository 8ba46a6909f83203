"""The check of a GPU, run here: right, wrong and impossible rows, and a row for every test and layout."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_check.bundle import packages, sources
from scripts.gpu_check.programs import GpuCheck
from tests import hostgpu
from tests.process_ends import assert_end
from tests.trainer.layouts import Layout

ROOT = Path(__file__).parents[2]
EXPECTED: dict[str, Any] = json.loads((ROOT / "scripts/gpu_check/expected.json").read_text())
FILE, SHOWN, BY_TRITON = (
    "tests/trainer/test_on_a_gpu.py",
    "test_a_model_that_flex_attention_cannot_compute_is_computed_with_a_dense_mask",
    "test_compiled_layers_have_the_same_gradient",
)
SMALL: dict[str, Any] = {
    **EXPECTED,
    "tests": {FILE: {SHOWN: 1, BY_TRITON: 4}},
    "layouts": {**EXPECTED["layouts"], "of_gpus": {"2": {"dense": ["1x2"], "experts": ["2x1x1x1x2"]}}},
}
on_the_device = [
    pytest.mark.skipif(not hostgpu.can_be_built(), reason=f"needs {hostgpu.COMPILER} to compile tests/hostgpu"),
    pytest.mark.timeout(1800),
]
pytestmark = pytest.mark.slow


def checked(tmp_path: Path, expected: dict[str, Any], *options: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit status, rows by name, and what it printed."""
    given, report = tmp_path / "expected.json", tmp_path / "report.json"
    given.write_text(json.dumps(expected))
    command = [sys.executable, "-m", "scripts.gpu_check", "--expected", str(given), "--report", str(report)]
    done = subprocess.run([*command, "--minutes", "25", *options], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, {row["what"]: row for row in json.loads(report.read_text())}, done.stdout + done.stderr


@pytest.mark.parametrize("marked", [pytest.param("hostgpu", marks=on_the_device)])
def test_the_whole_command_shows_what_this_machine_can(marked: str, tmp_path: Path) -> None:
    """Among them layers by tp_size and experts by ep_size over two devices, against one process on a CPU."""
    status, rows, printed = checked(tmp_path, SMALL, "--device", marked, "--gpus", "2")
    assert status == 0, printed
    right = {what: row["right"] for what, row in rows.items()}
    assert right["torch"]
    assert right["layout 1x2, dense"]
    assert right["layout 2x1x1x1x2, experts"]
    assert right[SHOWN.removeprefix("test_").replace("_", " ")]
    assert right["step, plain: computed"]
    assert right["compiled layers have the same gradient"] is None
    assert rows["compiled layers have the same gradient"]["measured"] == "not shown: needs Triton"
    assert right["step, plain: peak GiB"] is None, "of another model"
    assert "WRONG" not in printed


@pytest.mark.parametrize("marked", [pytest.param("hostgpu", marks=on_the_device)])
def test_a_wrong_figure_is_a_failed_row_and_exit_status(marked: str, tmp_path: Path) -> None:
    wrong = {**SMALL, "torch": "99.0", "tests": {FILE: {SHOWN: 2}}}
    status, rows, printed = checked(tmp_path, wrong, "--device", marked, "--gpus", "2", "--only", "versions", "tests")
    assert status == 1
    assert {what: row["right"] for what, row in rows.items()} == dict.fromkeys(rows, False)
    assert len(rows) == 2
    assert printed.count("WRONG") == 2


def test_a_layout_that_crashes_or_differs_is_wrong(tmp_path: Path) -> None:
    """Three processes do not share these heads; two add in another order than one, which a bound of nothing shows."""
    layouts = {**SMALL["layouts"], "differ_at_most": {"cpu": 1e-30}, "of_gpus": {"2": {"dense": ["1x3", "2"]}}}
    status, rows, _ = checked(
        tmp_path, {**SMALL, "layouts": layouts}, "--device", "cpu", "--gpus", "2", "--only", "layouts"
    )
    assert status == 1
    assert rows["layout 1x3, dense"]["right"] is False
    assert rows["layout 1x3, dense"]["measured"].startswith("failed: ")
    assert rows["layout 2, dense"]["right"] is False
    assert 0 < float(rows["layout 2, dense"]["measured"]) < 1e-9


def test_nothing_reached_is_no_success(tmp_path: Path) -> None:
    status, rows, _ = checked(tmp_path, SMALL, "--device", "cpu", "--gpus", "2", "--minutes", "0")
    assert status == 1
    assert {row["right"] for what, row in rows.items() if what.startswith("layout")} == {None}


def test_a_program_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    code = f"import os, time; pid = os.fork(); pid and open({str(tmp_path / 'pid')!r}, 'w').write(str(pid)); time.sleep(600)"
    status, _ = GpuCheck("cpu", 1, EXPECTED, float("inf")).run(["-c", code], limit_s=5.0)
    assert status == 124
    assert_end([int((tmp_path / "pid").read_text())])


def test_every_test_for_gpus_is_expected_with_its_number_of_cases() -> None:
    files = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path.parent.name != "hostgpu" and re.search(r"mark\.gpu\b|on_an_accelerator", path.read_text())
    ]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    collected = Counter(re.findall(r"^(tests/\S+\.py::\w+)", printed, flags=re.MULTILINE))
    assert len(collected) > 20, printed
    expected = {f"{file}::{name}": of for file, names in EXPECTED["tests"].items() for name, of in names.items()}
    unmarked = {
        name for name in expected if "test_private_apis" in name
    }  # run on every machine, and there with its torch
    assert {name: of for name, of in expected.items() if name not in unmarked} == dict(collected)
    names = {name.partition("::")[2] for name in expected}
    assert {*EXPECTED["needs_triton"], *EXPECTED["needs_sglang"], *EXPECTED["needs_gpus"]} <= names


@pytest.mark.parametrize("gpus", EXPECTED["layouts"]["of_gpus"])
def test_layouts_are_of_as_many_processes_as_there_are_gpus(gpus: str) -> None:
    chosen = [layout for of in EXPECTED["layouts"]["of_gpus"][gpus].values() for layout in of]
    assert {Layout(*map(int, layout.split("x"))).processes for layout in chosen} == {int(gpus)}


def test_the_archive_has_the_check_its_tests_and_what_they_read() -> None:
    names = {name for _, name in sources()}
    for needed in (*EXPECTED["tests"], "scripts/gpu_check/expected.json", "tests/hostgpu/device.cpp", "pyproject.toml"):
        assert needed in names
    assert {"assets/example/model/config.json", "assets/fsdp2.yml", "tests/conftest.py"} <= names
    packed = {name.split("/")[1] for _, name in packages()}
    assert {"transformers", "pymongo", "pytest", "peft"} <= packed
    assert "torch" not in packed
