"""Runs with slow look-ups, of `scripts.bench.compare_staleness`, learn from own tasks and are judged by the bundled ones."""

from pathlib import Path

from scripts.bench.slow_tasks import EVAL_FILE, slow_tasks


def test_the_environment_names_tasks_tools_and_an_evaluation(tmp_path: Path) -> None:
    with slow_tasks(tmp_path, 1.0) as environment:
        assert Path(environment["TRAIN_FILE"]).is_file()
        assert environment["MCP_MANAGER_URL"].startswith("http://127.0.0.1:")
        assert Path(environment["EVAL_FILE"]) == EVAL_FILE
    assert EVAL_FILE.is_file()
