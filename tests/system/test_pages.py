"""The commands of the documentation's examples, extracted from their pages and run by a shell unchanged.

They run in a copy of the repository, so that no user's output is changed; the environment makes them short.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.audit.run import audit
from tests.system.processes import PATIENT, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT_S = 840.0
BLOCK = re.compile(r"<!-- runs in tests/system/test_pages.py -->\n```bash\n(.*?)```", re.DOTALL)
PARTS = ("assets", "docs", "sampler", "scripts", "shared", "trainer", "pyproject.toml")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy without what runs have left."""
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def run_page(repository: Path, page: str, **environment: str) -> list[str]:
    """What each block of the page printed. Fails where one ends with an error."""
    blocks = BLOCK.findall((repository / "docs" / page).read_text(encoding="utf-8"))
    assert blocks, f"{page} has no block that runs"
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(repository),
        "COLUMNS": "200",
    }
    printed = []
    for block in blocks:
        status, output = run_block(block, repository, {**os.environ, "OMP_NUM_THREADS": "1", **own, **environment})
        logs = "".join(f"\n--- {p.name}\n{p.read_text()[-1500:]}" for p in sorted(repository.glob("logs/*.log")))
        assert status == 0, f"{block}\n{output}{logs}"
        printed.append(output)
    return printed


def run_block(block: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output; after LIMIT_S it is ended with its descendants."""
    process = subprocess.Popen(
        ["bash", "-e", "-o", "pipefail", "-c", block],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # mongod too is ended by its own parent
        output, _ = process.communicate(timeout=60)
        output += f"\n... not over after {LIMIT_S:g} s"
    return process.returncode, output


def short_eval(repository: Path) -> str:
    """A few of the held-out tasks."""
    tasks = (repository / "assets" / "gridworld" / "eval.jsonl").read_text().splitlines(keepends=True)
    short = repository / "eval.jsonl"
    short.write_text("".join(tasks[:3]))
    return str(short)


@pytest.mark.thorough
async def test_the_grid_world_of_the_custom_samplers_page_plays_and_trains(repository: Path) -> None:
    _, looked_at = run_page(
        repository,
        "bring/custom_samplers.md",
        EVAL_FILE=short_eval(repository),
        TANDEM_SFT_MAX_STEPS="5",
        TANDEM_TRAINER_MAX_STEPS="2",
        TANDEM_TRAINER_GROUPS_PER_STEP="2",
        TANDEM_TRAINER_REPORT_TO='["none"]',
        TANDEM_LAUNCH_NUM_GENERATIONS="4",
        **PATIENT,
    )
    assert "lost_turns=" in looked_at
    folder = repository / "output" / "gridworld"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(0 <= step["metric_by_source/gridworld/reached"] <= 1 for step in steps)
    with Mongod(folder / "mongodb") as server:
        async with Store.open(server.connection_string, "gridworld") as store:
            data = (await store.data.find({"trained_count": 1}))[0]
            dispatches = (await store.records.dispatches_of([data.id]))[data.id]
    earned = [d.score for d in dispatches if d.score is not None]
    assert len(earned) == len(dispatches) > 0
    assert sum(earned) == pytest.approx(data.reward), "the turns' scores are the shares of the episode's"


@pytest.mark.thorough
async def test_the_guide_and_the_walker_of_the_two_policies_page_learn_each_from_its_own_turns(
    repository: Path,
) -> None:
    shutil.copytree(repository / "assets" / "example" / "model", repository / "output" / "guided_sft" / "final")
    (printed,) = run_page(
        repository,
        "train/two_policies.md",
        EVAL_FILE=short_eval(repository),
        TANDEM_TRAINER_MAX_STEPS="2",
        TANDEM_TRAINER_GROUPS_PER_STEP="2",
        TANDEM_TRAINER_REPORT_TO='["none"]',
        TANDEM_LAUNCH_NUM_GENERATIONS="4",
        **PATIENT,
    )
    for policy in ("walker", "guide"):
        assert re.search(rf"{policy}: step 2/2 reward", printed), printed
        assert f"held-out reward of {policy}" in printed
    folder = repository / "output" / "guided"
    summary = json.loads((folder / "summary.json").read_text())
    assert [(figures["version"], figures["n"]) for figures in summary["eval"].values()] == [(0, 3), (2, 3)]
    guide = summary["other_policies"]["guide"]
    assert [(figures["versions"], figures["n"]) for figures in guide["eval"].values()] == [([0], 3), ([2], 3)]
    assert (summary["steps"], guide["steps"]) == (2, 2)
    for policy in ("walker", "guide"):
        assert (folder / policy / "checkpoints" / "step-000002").is_dir()
    with Mongod(repository / "output" / "guided" / "mongodb") as server:
        async with Store.open(server.connection_string, "guided") as store:
            assert (await audit(store)).ok
            used = await store.data.find({"trained_count": 1})
            steps = {(d.policy, step) for d in used for step in d.trained_steps}
            assert steps == {(policy, step) for policy in ("walker", "guide") for step in (1, 2)}
            for data in used:
                dispatches = {d.id: d for d in (await store.records.dispatches_of([data.record]))[data.record]}
                assert {dispatches[d.id].policy for d in data.dispatches} == {data.policy}
                record = await store.records.get(data.record)
                assert record is not None
                assert data.reward == (record.score if data.policy == "walker" else record.policy_scores["guide"])
            versions = {policy: [v.step for v in await store.versions.all(policy)] for policy in ("walker", "guide")}
            assert versions == {"walker": [0, 1, 2], "guide": [0, 1, 2]}
