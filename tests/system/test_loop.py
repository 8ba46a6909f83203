"""The whole loop with real processes: what was sampled is what was trained, token for token."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shared.audit import audit
from shared.store import Store
from shared.task_files import Target, import_task_file
from tests.system.processes import PATIENCE_S, ROOT, TRAIN_FILE, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def queue_tasks(run: Run, num_generations: int = 4) -> None:
    async with Store.open(run.mongod.connection_string, run.name) as store:
        await import_task_file(store, TRAIN_FILE, Target(num_generations=num_generations))


@pytest.mark.parametrize(("trainer_processes", "publish_mode"), [(1, "full"), (2, "delta")])
async def test_a_run_trains_by_itself_and_every_stored_promise_holds(
    tmp_path: Path, trainer_processes: int, publish_mode: str
) -> None:
    with Run(tmp_path, max_steps=3) as run:
        run.trainer_flags["publish_mode"] = publish_mode
        await queue_tasks(run)
        run.start_all(samplers=2, trainer_processes=trainer_processes)
        assert run.wait("trainer") == 0, run.log("trainer")
        for name in ("sampler0", "sampler1"):
            assert run.end(name) == 0, run.log(name)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            report = await audit(store)
            assert report.ok, report
            versions = await store.versions.all("main")
            assert [v.step for v in versions] == [0, 1, 2, 3]
            assert [v.kind for v in versions] == ["full", "full", "full" if publish_mode == "full" else "delta", "full"]
            trained = await store.data.find({"status": "trained"})
        assert {step for d in trained for step in d.trained_steps} == {1, 2, 3}
        lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [1, 2, 3]
        assert all(line["data/staleness_max"] <= 2 for line in lines)
        forwarded = [line for line in lines if line["data/tokens_tree"]]
        assert all(
            line["data/tokens_tree"] < line["data/tokens_linear"] < line["data/tokens_flat"] for line in forwarded
        )
        verify(run)


def verify(run: Run) -> None:
    """The engine's log-probs equal a recomputation under the very weights that sampled them."""
    flags = ["--run", run.name, "--db_connection_string", run.mongod.connection_string, "--tolerance", "1e-4"]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.verify", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
