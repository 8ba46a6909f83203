"""`tandem tasks import`: its report, and the errors of a file."""

import asyncio
import json
from pathlib import Path

import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from shared.tasks import scorer_names
from tests.shared.image_files import valid
from tests.tandem.commands.commands import Command


def test_an_import_says_what_it_did(tandem: Command) -> None:
    Path("t.jsonl").write_text('{"id": "a", "query": "q"}\n{"id": "b", "query": "q"}\n')
    first = tandem("tasks", "import", "imported", "t.jsonl", "--split", "eval", "--num_generations", "2")
    assert first.exit_code == 0, first.output
    assert "run imported, split eval: 2 inserted, 0 unchanged" in first.stdout
    again = tandem("tasks", "import", "imported", "t.jsonl", "--split", "eval", "--epochs", "2")
    assert "2 inserted, 2 unchanged" in again.stdout
    third = tandem("tasks", "import", "imported", "t.jsonl", "--split", "eval", "--epoch", "5")
    assert "2 inserted, 0 unchanged" in third.stdout
    assert tandem("tasks", "import", "imported", "t.jsonl", "--epoch", "5", "--epochs", "2").exit_code == 2


MIX = """
tasks:
  sources:
    - {name: a, file: t.jsonl, weight: 2, num_generations: 3, max_turns: 2}
    - {name: b, file: t.jsonl, weight: 1}
    - {name: held, file: t.jsonl, split: eval}
"""


def test_a_mixture_is_imported_and_its_held_out_tasks_are_a_round(tandem: Command) -> None:
    Path("t.jsonl").write_text('{"id": "x", "query": "q"}\n{"id": "y", "query": "q"}\n{"id": "z", "query": "q"}\n')
    Path("mix.yml").write_text(MIX)
    result = tandem("tasks", "import", "mixed", "--config", "mix.yml", "--num_generations", "4")
    assert "run mixed, mix.yml: 9 inserted, 0 unchanged" in result.stdout
    assert "0 inserted, 9 unchanged" in tandem("tasks", "import", "mixed", "--config", "mix.yml").stdout
    shown = tandem("eval", "mixed")
    assert (shown.exit_code, "0/3" in shown.stdout) == (0, True)
    (played,) = json.loads(tandem("eval", "mixed", "--json").stdout)["rounds"]
    assert (played["version"], played["step"], played["complete"], list(played["by_source"])) == (0, 0, False, ["held"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of FILE.jsonl, --from agentrl://HOST:PORT/TASK and --config MIX.yml"),
        (
            ["t.jsonl", "--config", "mix.yml"],
            "give one of FILE.jsonl, --from agentrl://HOST:PORT/TASK and --config MIX.yml",
        ),
        (["--config", "mix.yml", "--epochs", "2"], "--epochs is for a FILE; with --config it stands in mix.yml"),
        (["--config", "mix.yml"], "mix.yml:5: sources.1.weight is -1;"),
    ],
)
def test_wrong_arguments_of_an_import_are_reported(tandem: Command, arguments: list[str], said: str) -> None:
    Path("mix.yml").write_text(MIX.replace("weight: 1", "weight: -1"))
    result = tandem("tasks", "import", "mixed", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_a_wrong_file_is_refused_line_by_line(tandem: Command) -> None:
    Path("t.jsonl").write_text('{"id": "a", "query": "q", "answer_schema": "bxoed"}\n{"id": "b"}\n')
    result = tandem("tasks", "import", "wrong", "t.jsonl")
    assert result.exit_code == 2
    assert 't.jsonl:1: "answer_schema" is "bxoed"; expected "answer" or "boxed"' in result.stderr
    assert 't.jsonl:2: "query" is missing' in result.stderr
    assert tandem("tasks", "import", "wrong", "absent.jsonl").exit_code == 2


FAILED_IMPORTS = {
    "a missing file": ["tasks", "import", "never", "absent.jsonl"],
    "a folder": ["tasks", "import", "never", "."],
    "a wrong line": ["tasks", "import", "never", "wrong.jsonl"],
    "a wrong model of metadata": ["tasks", "import", "never", "right.jsonl", "--payload_model", "no.such:Model"],
    "a missing mixture": ["tasks", "import", "never", "--config", "absent.yml"],
    "a mixture whose last file is missing": ["tasks", "import", "never", "--config", "mix.yml"],
    "an environment that does not answer": ["tasks", "import", "never", "--from", "agentrl://127.0.0.1:9/task"],
    "missing data": ["data", "import", "never", "absent.bson.gz"],
    "data that is none": ["data", "import", "never", "wrong.jsonl"],
}


@pytest.mark.parametrize("kind", FAILED_IMPORTS)
def test_a_failed_import_leaves_no_run(tandem: Command, kind: str) -> None:
    Path("right.jsonl").write_text('{"id": "a", "query": "q"}\n')
    Path("wrong.jsonl").write_text('{"id": "a", "query": "q"}\n{"id": "b"}\n')
    Path("mix.yml").write_text("tasks: {sources: [{name: a, file: right.jsonl}, {name: b, file: absent.jsonl}]}")
    assert tandem(*FAILED_IMPORTS[kind]).exit_code in (1, 2)
    assert "never" not in [row["name"] for row in json.loads(tandem("runs", "--json").stdout)]


def test_commands_on_a_run_without_anything_say_so(tandem: Command) -> None:
    Path("t.jsonl").write_text('{"id": "a", "query": "q"}\n')
    assert tandem("tasks", "import", "unplayed", "t.jsonl").exit_code == 0
    exported = tandem("data", "export", "unplayed", "out.bson.gz")
    assert (exported.exit_code, Path("out.bson.gz").exists()) == (1, False)
    assert "run unplayed has no settled group of policy main with training data; nothing was written" in exported.stderr
    of_another = tandem("eval", "unplayed", "--policy", "mian")
    assert "run unplayed has no held-out tasks of policy mian: nothing was evaluated" in of_another.stderr


OWN_SCORERS = """
from sampler.scorers import Score, ScoringRequest, register_scorer


@register_scorer("tests_cli_mine")
async def mine(request: ScoringRequest) -> Score:
    return Score(1.0)
"""


def test_a_scorer_that_is_not_known_here_is_a_warning_and_an_error_where_its_modules_are_named(
    tandem: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_names, "_REGISTERED", {})
    Path("own_cli_scorers.py").write_text(OWN_SCORERS)
    Path("t.jsonl").write_text('{"id": "a", "query": "q", "scorer": "tests_cli_mine"}\n')
    Path("typo.jsonl").write_text('{"id": "a", "query": "q", "scorer": "tests_cli_mien"}\n')
    unknown = tandem("tasks", "import", "scorers1", "typo.jsonl")
    assert (unknown.exit_code, "1 inserted" in unknown.stdout) == (0, True)
    assert '1 tasks: "scorer" is "tests_cli_mien"; expected one of agentcpm' in unknown.stderr
    refused = tandem("tasks", "import", "scorers2", "typo.jsonl", "--scorer_modules", "own_cli_scorers.py")
    assert refused.exit_code == 2
    assert 'typo.jsonl:1: "scorer" is "tests_cli_mien"; expected "tests_cli_mine"' in refused.stderr
    known = tandem("tasks", "import", "scorers2", "t.jsonl", "--scorer_modules", "own_cli_scorers.py")
    assert (known.exit_code, known.stderr.strip()) == (0, "")
    absent = tandem("tasks", "import", "scorers2", "t.jsonl", "--scorer_modules", "no.such")
    assert (absent.exit_code, "scorer_modules: 'no.such' cannot be imported" in absent.stderr) == (2, True)


def test_a_mixtures_samplers_are_those_of_its_file(tandem: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer_names, "_REGISTERED", {})
    Path("own_mix_scorers.py").write_text(OWN_SCORERS.replace("tests_cli_mine", "tests_mix_mine"))
    Path("t.jsonl").write_text('{"id": "a", "query": "q", "answer": "4", "scorer": "agentcpm"}\n')
    source = "tasks: {sources: [{name: s, file: t.jsonl, scorer: tests_mix_mien}]}\n"
    Path("mix.yml").write_text(source + "sampler: {scorer_modules: [./own_mix_scorers.py]}\n")
    refused = tandem("tasks", "import", "mixed_scorers", "--config", "mix.yml")
    assert 't.jsonl:1: "scorer" is "tests_mix_mien"; expected "tests_mix_mine"' in refused.stderr
    Path("mix.yml").write_text(source + "sampler: {scorer_modules: [only.there]}\n")
    taken = tandem("tasks", "import", "mixed_scorers", "--config", "mix.yml")
    assert (taken.exit_code, "1 inserted" in taken.stdout) == (0, True)
    assert "mix.yml: scorer_modules: 'only.there' cannot be imported" in taken.stderr
    assert "Its scorers are not known here" in taken.stderr


def test_images_of_a_task_file_are_imported_unless_the_runs_model_reads_text_alone(
    tandem: Command, mongod: Mongod
) -> None:
    async def a_trainer_had(model: Path) -> None:
        async with Store.open(mongod.connection_string, "seen") as store:
            settings = await store.settings.keep("trainer-main", {"model_name_or_path": str(model)}, "w")
            await store.runs.note_settings("trainer-main", settings)

    Path("red.png").write_bytes(valid("PNG"))
    Path("t.jsonl").write_text('{"id": "a", "query": "q", "image": "red.png"}\n')
    done = tandem("tasks", "import", "seen", "t.jsonl", "--image_hosts", "x.test")
    assert (done.exit_code, "1 inserted, 0 unchanged" in done.stdout) == (0, True), done.output
    Path("config.json").write_text('{"model_type": "qwen3"}')
    asyncio.run(a_trainer_had(Path.cwd()))
    refused = tandem("tasks", "import", "seen", "t.jsonl")
    assert refused.exit_code == 2
    assert 't.jsonl:1: "query" shows images; the model in' in refused.output
    Path("mix.yml").write_text(MIX)
    both = tandem("tasks", "import", "mixed", "--config", "mix.yml", "--image_hosts", "x.test")
    assert (both.exit_code, "--image_hosts is for a FILE" in both.output) == (2, True)
