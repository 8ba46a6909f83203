"""`tandem run` as a whole: its messages, and its clean-up when it cannot continue."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.store import Store
from tandem.launch.rounds import import_eval
from tandem.launch.settings import LaunchConfig
from tests.system.processes import PATIENCE_S, PATIENT, ROOT, launched

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def broken_model(tmp_path: Path) -> Path:
    """A folder that passes the launcher's look, and that no engine can load."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    return tmp_path


def launch(run: str, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tandem.launch", run, "--config", "assets/example/minirl.yml"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | PATIENT | environment,
    )


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    pytest.fail(f"{text!r} never came; it said:\n{seen}")


def test_a_child_that_cannot_start_is_named_with_the_end_of_its_log_and_all_are_stopped(
    run: str, broken_model: Path
) -> None:
    no_folder = broken_model / "config.json"
    process = launch(run, TANDEM_KEEPER_CACHE_DIR=str(no_folder))
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert "the end of" in output
    assert f"{run}_" in output
    last = output.rstrip("\n").splitlines()[-1]
    assert last.startswith("cause: engine 0 (pid ")
    assert str(no_folder) in last
    assert 'Traceback (most recent call last):\n  File "<frozen runpy>"' not in output  # the launcher's own
    assert launched(run) == []


def test_a_model_that_cannot_work_is_refused_before_anything_runs(run: str, broken_model: Path) -> None:
    process = launch(run, MODEL=str(broken_model))
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert f"{broken_model} cannot be trained (`tandem check-model {broken_model}`):" in output
    assert output.rstrip("\n").splitlines()[-1].startswith("files: ")
    assert "no tokenizer.json" in output
    assert "MongoDB" not in output
    assert launched(run) == []


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_launcher_that_is_interrupted_or_killed_leaves_nothing_running(
    run: str, sign: signal.Signals, status: int
) -> None:
    process = launch(run)
    read_until(process, "tools: ")
    assert len(launched(run)) >= 2  # the database and the tools at least
    process.send_signal(sign)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status
    deadline = time.monotonic() + PATIENCE_S
    while launched(run):
        assert time.monotonic() < deadline, f"left: {launched(run)}"
        time.sleep(0.1)


def test_a_wrong_setting_stops_the_start_with_a_message(run: str) -> None:
    process = launch(run, TRAIN_FILE="nowhere.jsonl")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "nowhere.jsonl, which is not a file" in output
    assert "Traceback" not in output


def test_a_wrong_file_ends_a_start_and_a_dry_run_with_its_line_and_no_traceback(run: str, tmp_path: Path) -> None:
    lines = [{"id": str(number), "query": "2+2?", "answer": "4"} for number in range(40)]
    texts = [json.dumps(line) for line in lines]
    texts[36] = texts[36][:20]
    (tmp_path / "tasks.jsonl").write_text("\n".join(texts))
    (tmp_path / "config.json").write_text("{ no")
    wrong = [(f"--train_file={tmp_path}/tasks.jsonl", "tasks.jsonl:37: not JSON", 1)]
    wrong += [
        (f"--model={tmp_path}", "config.json: not JSON", 2),
        ("--config=no.yml", f"no.yml: cannot be read in {ROOT}", 2),
    ]
    for flag, said, status in wrong:
        command = [sys.executable, "-m", "tandem.launch", run, "--dry-run", flag]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        output = done.stdout + done.stderr
        assert said in output, output
        assert "Traceback" not in output
        assert done.returncode == status


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"NUM_MACHINES": "2"}, "DB_CONNECTION_STRING, MASTER_ADDR, MASTER_PORT must be given"),
        ({"NUM_MACHINES": "2", "MACHINE_RANK": "2"}, "MACHINE_RANK is 2; expected 0 to 1"),
        ({"NUM_SAMPLERS": "two"}, "num_samplers is 'two'"),
        ({"TANDEM_LAUNCH_SAMPLERS": "2"}, "unknown variable TANDEM_LAUNCH_SAMPLERS"),
        ({"MODEL": "assets"}, "expected a local Hugging Face directory"),
    ],
)
def test_messages_about_settings_name_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, broken_model: Path, environment: dict[str, str], said: str
) -> None:
    for name, value in ({"MODEL": str(broken_model)} | environment).items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=re.escape(said)):
        LaunchConfig.load(["demo"])
    assert dict(os.environ) == before


def test_held_out_tasks_may_be_several_files_or_sources_but_not_both(
    monkeypatch: pytest.MonkeyPatch, broken_model: Path
) -> None:
    monkeypatch.setenv("MODEL", str(broken_model))
    files = [Path("assets/example/eval.jsonl"), Path("assets/example/mix/eval_sums.jsonl")]
    monkeypatch.setenv("EVAL_FILE", ", ".join(map(str, files)))
    config = LaunchConfig.load(["demo", "--only_evaluate", "true"])
    assert (config.eval_file, config.mix()) == (files, None)
    with pytest.raises(ConfigError, match=r"EVAL_FILE and the sources of split eval in assets/mix\.yml exclude"):
        LaunchConfig.load(["demo", "--config", "assets/mix.yml"])
    monkeypatch.delenv("EVAL_FILE")
    mix = LaunchConfig.load(["demo", "--config", "assets/mix.yml"]).mix()
    assert mix is not None
    assert len(mix.of_split("eval")) == 3


async def test_held_out_files_with_an_id_in_common_are_refused_before_anything_is_written(
    store: Store, monkeypatch: pytest.MonkeyPatch, broken_model: Path, tmp_path: Path
) -> None:
    for name, ids in (("a", "12"), ("b", "32")):
        lines = [json.dumps({"id": k, "query": f"{name}?"}) for k in ids]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    monkeypatch.setenv("MODEL", str(broken_model))
    monkeypatch.setenv("EVAL_FILE", ",".join(map(str, files)))
    with pytest.raises(ConfigError, match=re.escape(f'{files[1]}:2: "id" is "2", which {files[0]}:2 already has')):
        await import_eval(store, LaunchConfig.load(["demo"]))
    assert await store.tasks.count_by_status() == {}


def test_plain_names_flags_and_yaml_are_read_in_this_order(
    monkeypatch: pytest.MonkeyPatch, broken_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.yml").write_text("launch: {num_samplers: 5, num_generations: 6, num_processes: 7}")
    monkeypatch.setenv("MODEL", str(broken_model))
    monkeypatch.setenv("CONFIG", str(tmp_path / "run.yml"))
    monkeypatch.setenv("NUM_SAMPLERS", "3")
    monkeypatch.setenv("NUM_PROCESSES", "4")
    monkeypatch.setenv("ENGINE_URLS", "http://a:1, http://b:2")
    config = LaunchConfig.load(["demo", "--num_samplers", "1"])
    assert (config.num_samplers, config.num_processes, config.num_generations) == (1, 4, 6)
    assert config.engine_urls == ["http://a:1", "http://b:2"]
