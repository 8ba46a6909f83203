"""Every command of `tandem` that fails ends with another status than 0, and with the cause as one last line."""

import logging
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import typer

from shared.processes.run_module import command
from tandem.commands.every import app
from tandem.commands.programs import PROGRAMS
from tests.tandem.commands.commands import Command

DEAD = "mongodb://127.0.0.1:9/"
NOWHERE = "no-such-run"
RECORD = "main:train:0:t0:0:1"
# {command: (arguments with which it fails, what its last line names)}; without arguments: the run that does not exist
FAILING: dict[str, tuple[Sequence[str], str]] = {
    "runs": (["--db_connection_string", "redis://h"], "mongodb://"),
    "gc": ([NOWHERE], NOWHERE),
    "show": ([NOWHERE, RECORD], NOWHERE),
    "note": ([NOWHERE, RECORD, "text"], NOWHERE),
    "feedback": ([NOWHERE, RECORD, "1"], NOWHERE),
    "replay": ([NOWHERE, RECORD], NOWHERE),
    "bisect": ([NOWHERE, RECORD, "0"], NOWHERE),
    "fork": ([NOWHERE, f"{RECORD}:0"], NOWHERE),
    "health": ([NOWHERE, "sampler"], NOWHERE),
    "export-model": ([NOWHERE], f"output/{NOWHERE}/checkpoints: expected a checkpoint"),
    "check-model": (["nowhere"], "nowhere"),
    "metrics": ([NOWHERE, "--once"], NOWHERE),
    "view": ([NOWHERE], NOWHERE),
    "mongod": (["--folder", "a-file/mongodb"], "a-file"),
    "tasks import": (["a-new-run", "nowhere.jsonl"], "nowhere.jsonl"),
    "tasks convert": (["nowhere.csv", "out.jsonl"], "nowhere.csv"),
    "data export": ([NOWHERE, "out.bson.gz"], NOWHERE),
    "data import": (["a-new-run", "nowhere.bson.gz"], "nowhere.bson.gz"),
    "data restore": (["a-new-run", "nowhere.bson.gz"], "nowhere.bson.gz"),
    "database prepare": (["--folder", "a-file/database"], "a-file"),
    "trace chain": ([NOWHERE, "--step", "1"], NOWHERE),
    "trace export": ([NOWHERE, "--otlp", "http://127.0.0.1:9"], NOWHERE),
    "resettle": ([NOWHERE, "--as", "other"], NOWHERE),
}
# those of files, and those that are programs, which wait for a database longer
WITHOUT_DATABASE = (
    *("runs", "export-model", "check-model", "mongod", "tasks convert", "database prepare"),
    *("replay", "resettle", "bisect"),
)
# programs that this process cannot become, each with a setting that is wrong, and what its last line names
PROGRAM_FAILURES: dict[str, tuple[Sequence[str], str]] = {
    "run": (["a.b"], "a.b"),
    "demo": (["--num_samplers", "many"], "num_samplers"),
    "plan": (["a.b"], "a.b"),
    "sampler": (["--run", "a b"], "model_name_or_path"),
    "trainer": (
        ["--run", "r", "--model_name_or_path", "nowhere", "--tp_size", "2", "--groups_per_step", "1"],
        "tp_size",
    ),
    "sft": (["--model_name_or_path", "nowhere", "--train_file", "nowhere.jsonl", "--output_dir", "out"], "nowhere"),
    "keeper": (["--run", "r"], "model_name_or_path"),
    "engine": (["--model-path", "nowhere", "--port", "0"], "nowhere"),
    "vllm": (["--model-path", "nowhere", "--port", "0"], "nowhere"),
    "quantize": (["--model_name_or_path", "nowhere", "--output_dir", "out"], "nowhere"),
    "environments": (["--port", "many", "--environments", "guess=worlds:Guess"], "many"),
    "gateway": (["--run", "a b"], "model_name_or_path"),
    "mcp-docker": (["--servers", "nowhere.json"], "nowhere.json"),
    "verify": (["--run", "r", "--records", "0"], "records"),
}


def commands() -> list[str]:
    """Every command of `tandem` but the programs, as it is typed."""

    def below(node: Any, path: str) -> Iterator[str]:
        children = getattr(node, "commands", {})
        yield from () if children else (path,)
        for name, child in children.items():
            if name not in PROGRAMS:
                yield from below(child, f"{path} {name}".strip())

    return list(below(typer.main.get_command(app), ""))


@pytest.fixture
def failing(tandem: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    Path("a-file").write_text("no folder")
    monkeypatch.setattr("tandem.commands.connect.CONNECT_TIMEOUT_S", 0.3)
    handlers = list(logging.getLogger().handlers)
    yield tandem
    logging.getLogger().handlers = handlers  # a command's process is its own


def ended(failing: Command, capfd: pytest.CaptureFixture[str], name: str, arguments: Sequence[str]) -> str:
    """Runs the command, which has to fail; returns its last line. Some commands are programs, which write by themselves."""
    result = failing(*name.split(), *arguments)
    output = result.output + capfd.readouterr().err
    assert result.exit_code in (1, 2), output
    assert isinstance(result.exception, SystemExit), "no traceback"
    assert "Traceback" not in output
    return output.rstrip("\n").splitlines()[-1]


@pytest.mark.parametrize("name", commands())
def test_a_command_that_fails_ends_with_its_cause_in_one_last_line(
    failing: Command, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    arguments, cause = FAILING.get(name, ([NOWHERE], NOWHERE))
    assert cause in ended(failing, capfd, name, arguments)


@pytest.mark.parametrize("name", [name for name in commands() if name not in WITHOUT_DATABASE])
def test_a_command_whose_database_is_gone_says_so_in_one_last_line(
    failing: Command, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    arguments, _ = FAILING.get(name, ([NOWHERE], NOWHERE))
    last = ended(failing, capfd, name, [*arguments, "--db_connection_string", DEAD])
    assert "127.0.0.1:9" in last or "nowhere" in last  # a missing file may be seen first


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.thorough
def test_a_program_that_cannot_start_ends_with_its_cause_in_one_last_line(tmp_path: Path) -> None:
    assert PROGRAM_FAILURES.keys() == PROGRAMS.keys()

    def run(name: str) -> "subprocess.CompletedProcess[str]":
        arguments = command("tandem", name, *PROGRAM_FAILURES[name][0])
        environment = {"DB_CONNECTION_STRING": DEAD, "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
        return subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(max_workers=2) as pool:
        ended = dict(zip(PROGRAMS, pool.map(run, PROGRAMS), strict=True))
    for name, done in ended.items():
        output = done.stdout + done.stderr
        assert done.returncode in (1, 2), f"{name}: {output}"
        assert PROGRAM_FAILURES[name][1] in done.stderr.rstrip("\n").splitlines()[-1], f"{name}: {output}"
        assert "Traceback" not in output, f"{name}: {output}"
