"""The launcher's checks before it starts a service: tasks that its samplers cannot play."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from shared.store.questions import TaskDemand
from shared.tasks import scorer_names
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig
from tandem.launch.task_checks import check_tasks, check_tools, check_truncation
from tests.sampler.boxes import start_box

SCORERS = """
from sampler.scorers import Score, ScoringRequest, register_scorer


@register_scorer("tests_launch_mine")
async def mine(request: ScoringRequest) -> Score:
    return Score(1.0)
"""
SAMPLER = """
from sampler.core.episode.sampler import AsyncSampler
from sampler.scorers import Score


class Mine(AsyncSampler):
    async def run(self): ...

    async def evaluate_record(self):
        return Score(1.0)
"""
Launch = Callable[..., list[str]]
JUDGE = "scorer_agent:\n  models: [{model: m, base_url: http://127.0.0.1:9/v1}]\n"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer_names, "_REGISTERED", {})


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """What is told of a launch whose one training task has `line`. Raises ConfigError. `settings` are the samplers'; from the
    environment, since flags of a service are checked by a process that imports torch."""

    def visible_payload(
        *flags: str, settings: dict[str, str] | None = None, eval_lines: Any = (), **line: Any
    ) -> list[str]:
        with monkeypatch.context() as environment:
            for name, value in (settings or {}).items():
                environment.setenv(f"TANDEM_SAMPLER_{name.upper()}", value)
            return told(tmp_path, flags, eval_lines, line)

    return visible_payload


def told(folder: Path, flags: tuple[str, ...], eval_lines: Any, line: dict[str, Any]) -> list[str]:
    task = {"id": "a", "query": "2+2?", "answer": "4"}
    for name, lines in (("train", [line]), ("eval", eval_lines)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(task | one) + "\n" for one in lines))
    files = ["--train_file", str(folder / "train.jsonl")]
    files += ["--eval_file", str(folder / "eval.jsonl")] if eval_lines else []
    lines: list[str] = []
    check_tasks(LaunchConfig.load(["demo", *files, *flags]), lines.append)
    return lines


def test_a_sampler_that_the_launch_does_not_have_ends_it(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SAMPLER)
    own = {"samplers": json.dumps({"mine": f"{tmp_path}/own.py:Mine"})}
    assert launch(settings=own, sampler="mine", scorer="unknown", tools=["x"]) == []
    with pytest.raises(
        ConfigError, match=r'train.jsonl:1: "sampler" is "mien"; expected "mine", or one that the setting'
    ):
        launch(settings=own, sampler="mien")
    with pytest.raises(
        ConfigError, match=r'train.jsonl:1: "sampler" is "agent", for which the samplers lack a setting: one'
    ):
        launch(sampler="agent")
    with pytest.raises(ConfigError, match=r"samplers: mine is .*own\.py:Yours': .* has no such name"):
        launch(settings={"samplers": json.dumps({"mine": f"{tmp_path}/own.py:Yours"})})
    (told_,) = launch(sampler="external")
    assert told_.startswith('1 tasks: "sampler" is "external": they wait for a gateway')


def test_tasks_that_the_launchs_samplers_cannot_play_end_it(launch: Launch) -> None:
    with pytest.raises(ConfigError, match=r'train.jsonl:1: "scorer" is "maths"; expected "math"'):
        launch(scorer="maths")
    with pytest.raises(ConfigError, match=r'eval.jsonl:1: "scorer" is "agentcpm", which needs a judge'):
        launch(eval_lines=[{"scorer": "agentcpm"}])
    with pytest.raises(ConfigError, match=r'"tools" names "search", but the samplers have no tool servers'):
        launch(tools=["search"])


def test_the_samplers_settings_determine_what_they_can_play(launch: Launch, tmp_path: Path) -> None:
    scorers, sampler, agents = tmp_path / "own_launch_scorers.py", tmp_path / "own_launch.py", tmp_path / "agents.yml"
    for path, text in ((scorers, SCORERS), (sampler, SAMPLER), (agents, JUDGE)):
        path.write_text(text)
    with pytest.raises(ConfigError, match="tests_launch_mine"):
        launch(scorer="tests_launch_mine")
    assert launch(settings={"scorer_modules": json.dumps([str(scorers)])}, scorer="tests_launch_mine") == []
    assert launch(settings={"agent_config_path": str(agents)}, scorer="agentcpm") == []
    assert launch(settings={"sampler": f"{sampler}:Mine"}, scorer="anything", tools=["any"]) == []
    assert launch("--mcp_manager_url", "http://127.0.0.1:9/mcp", tools=["search"]) == []
    unplayed = launch("--only_evaluate", "true", eval_lines=[{}], scorer="maths")
    assert unplayed == [], "what is not played is not looked at"


def test_a_flag_of_the_samplers_counts_too(tmp_path: Path) -> None:
    """Handing it out is tested with the flags; that asks a process with torch."""
    config = LaunchConfig.load(["demo"])
    config._service_flags = {"sampler": [f"--agent_config_path={tmp_path / 'none.yml'}"]}
    with pytest.raises(ConfigError, match=r"none.yml: cannot be read"):
        check_tasks(config, print)


def test_an_error_in_user_code_ends_the_launch_with_its_line(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "own_launch_broken.py"
    path.write_text("import json\njson.lods\n")
    for settings in ({"sampler": f"{path}:Mine"}, {"scorer_modules": json.dumps([str(path)])}):
        with pytest.raises(
            ConfigError, match=r"AttributeError: .*'lods'; at .*own_launch_broken.py:2, in <module>: json.lods"
        ):
            launch(settings=settings)
    with pytest.raises(ConfigError, match=r"none.yml: cannot be read"):
        launch(settings={"agent_config_path": str(tmp_path / "none.yml")})


def test_missing_parts_of_remote_samplers_are_warnings(launch: Launch) -> None:
    (line,) = launch("--num_samplers", "0", scorer="mine")
    assert line.startswith('1 tasks: "scorer" is "mine"; expected one of ')
    first, second = launch("--num_samplers", "0", settings={"scorer_modules": '["only.there"]'}, scorer="mine")
    assert first.startswith(
        "tasks are not checked against the samplers, which run elsewhere: scorer_modules: 'only.there'"
    )
    assert "Samplers without a module that registers it" in second


async def test_tools_that_no_server_offers_end_it_and_a_server_that_does_not_answer_does_not() -> None:
    config, lines = LaunchConfig.load(["demo"]), list[str]()
    asked = [TaskDemand((), ("ehco",), (), 3), TaskDemand((), ("echo",), (), 2), TaskDemand((), None, (), 1)]
    box = start_box()
    try:
        url = f"http://127.0.0.1:{box.port}/mcp"
        await check_tools(config, url, asked[1:], lines.append)
        assert lines == []
        with pytest.raises(
            ConfigError, match=r"3 tasks: tool 'ehco' is allowed, but not offered; the nearest offered: .*echo"
        ):
            await check_tools(config, url, asked, lines.append)
    finally:
        box.kill()
    await check_tools(config, url, asked, lines.append)
    assert lines[0].startswith("the tasks' tools are not checked: ")


def test_the_check_imports_no_torch() -> None:
    code = "import tandem.launch.task_checks, tandem.commands.tasks, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        (["--engine", "sglang"], True),
        (["--engine", "local,sglang"], True),
        (["--engine", "local,vllm"], False),
        (["--engine", "local"], False),
        (["--engine", "vllm"], False),
        (["--engine_urls", "http://127.0.0.1:9"], False),  # of a kind that its keeper finds out, and samplers refuse
        (["--engine", "sglang", "--only_evaluate", "true"], False),
    ],
    ids=str,
)
def test_an_engine_that_could_not_sample_what_training_truncates_ends_the_launch(
    flags: list[str], refused: bool
) -> None:
    config = LaunchConfig.load(["demo", *flags])
    check_truncation([config])
    config._service_flags = {"sampler": ["--top_p=0.9"]}
    outcome = (
        pytest.raises(ConfigError, match=r"top_p 0.9 in training, and sglang reports") if refused else nullcontext()
    )
    with outcome:
        check_truncation([config])
