"""No test depends on what its caller or its working copy happens to have: a copy of the tree is made dirty, and tested."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shared.processes.mongod import Mongod
from tandem.launch.settings import PLAIN_NAMES
from tests.mutants import copied
from tests.surroundings import FIXED, PARTS, PREFIXES, SYSTEM, make_clean, python_path

ROOT = Path(__file__).parents[1]
DIRTY = {
    **dict.fromkeys(PLAIN_NAMES, "left over"),
    **dict.fromkeys(("SLURM_NNODES", "NUM_MACHINES", "WORLD_SIZE", "RANK", "MASTER_PORT"), "2"),
    **dict.fromkeys(("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
    **dict.fromkeys(("OPENAI_API_KEY", "OPENAI_BASE_URL", "HF_TOKEN", "MCP_BEARER_TOKEN", "RUN_NAME"), "left over"),
    **{f"TANDEM_{service}_MAX_STEPS": "many" for service in ("TRAINER", "SAMPLER", "KEEPER", "LAUNCH")},
    **{"LANG": "C", "LC_ALL": "C", "TZ": "Asia/Kolkata", "COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "dumb"},
    **{
        "TORCHELASTIC_RUN_ID": "x",
        "SLURM_NODEID": "1",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "PYTHONWARNINGS": "error",
    },
}
# Quick ones that read settings, or start a command in the root of the tree. CI runs all tests beside a demo's output (.ci/run).
TESTS = (
    "tests/test_troubleshooting.py::test_what_a_newcomer_sees_is_on_the_page",
    "tests/test_troubleshooting.py::test_a_run_that_is_not_there_is_on_the_page",
    "tests/system/test_launch_command.py::test_messages_about_settings_name_what_is_missing",
    "tests/system/test_launch_nodes.py::test_one_slurm_node_is_one_machine",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.thorough
def test_tests_pass_in_a_dirty_copy_whose_path_has_a_blank(tmp_path: Path, mongod: Mongod) -> None:
    (folder := tmp_path / "a dirty copy").mkdir()
    copy = copied(folder)
    shutil.copy2(ROOT / "README.md", copy)
    for place in ("output/demo/mongodb", "output/mongodb"):  # of a server that runs
        (copy / place).mkdir(parents=True)
        (copy / place / "mongod.json").write_text(json.dumps({"port": mongod.port, "pid": os.getpid()}))
    (copy / "output" / "demo" / "metrics.jsonl").write_text("{}\n")
    (copy / "logs").mkdir()
    (copy / "logs" / "demo_train_0.log").write_text("Traceback\n")
    environment = (
        os.environ | DIRTY | {"DB_CONNECTION_STRING": mongod.connection_string, "PYTHONPATH": python_path(copy)}
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_a_callers_variables_are_taken_away_but_for_those_that_are_listed() -> None:
    environment = DIRTY | {"PATH": "/bin", "CHECK_SGLANG": "0", "PYTEST_ADDOPTS": "-x", "PYTHONPATH": "/elsewhere"}
    make_clean(environment, ROOT)
    assert environment == {"PATH": "/bin", "CHECK_SGLANG": "0", "PYTEST_ADDOPTS": "-x"} | FIXED
    make_clean(of_a_copy := {"PYTHONPATH": python_path(ROOT)}, ROOT)
    assert of_a_copy["PYTHONPATH"] == python_path(ROOT), "of a copy of the tree, which is tested"


def test_a_test_that_may_be_left_out_by_a_variable_is_given_it() -> None:
    """Else it would be skipped everywhere, unseen."""
    read = re.compile(r"""(?:environ(?:\.get\(|\[)|programs\()"([A-Z]\w+)"|"([A-Z]\w+)" (?:not )?in os\.environ""")
    skips = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "skip" in line or "PYTHON = " in line or "programs(" in line
        for found in read.finditer(line)
        if (name := found[1] or found[2])
    }
    assert len(skips) >= 5
    assert {name for name in skips if name not in (*SYSTEM, *PARTS) and not name.startswith(PREFIXES)} == set()
