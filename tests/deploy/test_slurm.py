"""deploy/slurm: what would be submitted, and when a job requeues itself. A real Slurm: python -m tests.system.slurm_run."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUBMIT = str(ROOT / "deploy" / "slurm" / "submit")
PATIENCE_S = 400


def submitted(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    bare = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TANDEM", "DB_", "NUM_"))
    }
    return subprocess.run(
        [SUBMIT, *arguments], env=bare | variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_a_dry_run_prints_both_jobs_and_what_their_nodes_would_start() -> None:
    done = submitted(
        *("demo", "--trainer-nodes", "2", "--workers", "3", "--worker-args", "--partition=spot", "--dry-run"),
        *("--", "--config", "assets/example/minirl.yml"),
        DB_CONNECTION_STRING="mongodb://u:secret-word@10.0.0.1:27017",
    )
    assert done.returncode == 0, done.stderr
    assert (
        "'sbatch' '--nodes=2' '--export=ALL,ENGINE=none,NUM_SAMPLERS=0' 'deploy/slurm/trainer.sbatch' 'demo'"
        in done.stdout
    )
    assert "'sbatch' '--array=0-2' '--partition=spot' 'deploy/slurm/workers.sbatch' 'demo'" in done.stdout
    assert [line.strip() for line in done.stdout.splitlines() if ", log logs/" in line and "trainer" in line] == [
        "trainer 0, log logs/demo_train_0.log",
        "trainer 1, log logs/demo_train_1.log",
    ]
    assert "-JOB-0-1, log logs/demo_sample_" in done.stdout
    assert "--main_process_ip FIRST_NODE" in done.stdout
    assert "secret-word" not in done.stdout + done.stderr
    assert "nothing was submitted" in done.stdout


def test_the_engine_that_is_named_is_that_of_the_workers_alone() -> None:
    done = submitted(
        *("demo", "--trainer-nodes", "1", "--workers", "1", "--engine", "vllm", "--dry-run"),
        DB_CONNECTION_STRING="mongodb://10.0.0.1:27017",
    )
    assert done.returncode == 0, done.stderr
    trainer, workers = done.stdout.split("'env' 'ENGINE=vllm' 'sbatch' '--array=0-0'")
    assert "ENGINE=none" in trainer
    assert "vllm_cpu.sh" not in trainer
    assert "vllm_cpu.sh" in workers


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo"], "DB_CONNECTION_STRING is not set"),
        (["demo", "--engine", "tgi"], "--engine is tgi; expected sglang, vllm, local or none"),
        (["demo", "--engine", "vllm", "--workers", "0"], "--engine is of the workers, and there are none"),
        (["demo", "--workers", "many"], "--workers is many; expected a number"),
        (["demo", "--workers", "0", "--trainer-nodes", "0"], "nothing to submit"),
        (["demo", "--max_steps", "4"], "flags of the run come after --"),
        (["demo", "other"], "two names of runs"),
    ],
)
def test_a_wrong_submission_is_refused(arguments: list[str], said: str) -> None:
    done = submitted(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("state", "array", "requeued"),
    [("RUNNING", "", "7"), ("RUNNING", "3", "5_3"), ("CANCELLED", "3", ""), ("COMPLETING", "", "")],
)
def test_a_job_that_drained_after_sigterm_requeues_itself_unless_it_was_cancelled(
    tmp_path: Path, state: str, array: str, requeued: str
) -> None:
    """The batch shell alone gets SIGTERM; Slurm's programs are replaced by ones that write down what they were asked."""
    programs = {
        "srun": 'trap "sleep 0.3; exit 130" TERM; touch started; while :; do sleep 0.1; done',
        "squeue": f'echo "$@" >> asked; echo {state}',
        "scontrol": 'echo "$@" >> asked',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    places = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    places |= {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": array} if array else {}
    script = f"set -euo pipefail; source '{ROOT}/deploy/slurm/step.sh'; run_step --ntasks=1 launcher"
    shell = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=os.environ | places)
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    shell.send_signal(signal.SIGTERM)
    assert shell.wait(PATIENCE_S) == 130
    asked = (tmp_path / "asked").read_text().splitlines()
    job = f"5_{array}" if array else "7"
    assert asked == [f"-h -j {job} -o %T", *([f"requeue {requeued}"] if requeued else [])]


def test_a_job_that_ended_by_itself_is_not_requeued(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/usr/bin/env bash\nexit 3\n")
    (tmp_path / "scontrol").write_text("#!/usr/bin/env bash\ntouch asked\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    script = f"set -euo pipefail; source '{ROOT}/deploy/slurm/step.sh'; run_step launcher"
    places = {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=os.environ | places, timeout=60, check=False)
    assert done.returncode == 3
    assert not (tmp_path / "asked").exists()
