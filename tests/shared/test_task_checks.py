"""Tasks that samplers cannot play: an import gives an error if that is certain, else a warning."""

from pathlib import Path
from typing import Any

import pytest

from sampler.bundled_scorers import tenant  # noqa: F401  # registers them
from sampler.core.scorers import registry
from shared.documents import TaskPayload
from shared.store import Store
from shared.store.questions import TaskDemand
from shared.tasks import scorer_names
from shared.tasks.checks import COMPARING, MAX_WARNINGS, Samplers, TaskCheck
from shared.tasks.files import ImportTarget, check_playable, import_task_file
from shared.tasks.line_errors import TaskFileError
from shared.tasks.sampler_names import BUNDLED

ALL = Samplers(knows_scorers=True, has_judge=False, has_tools=False)


@pytest.fixture(autouse=True)
def bundled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that other tests of this process have registered."""
    monkeypatch.setattr(scorer_names, "_REGISTERED", {})


def payload(**fields: Any) -> TaskPayload:
    return TaskPayload(**({"query": "2+2?", "answer": "4"} | fields))


def problems(samplers: Samplers, **fields: Any) -> list[str]:
    return list(TaskCheck(samplers).problems(payload(**fields)))


def test_the_names_of_the_bundled_scorers_are_those_of_the_samplers_registry() -> None:
    ours = {
        name: one.needs_judge for name, one in registry._SCORERS.items() if one.home.__module__.startswith("sampler.")
    }
    assert ours == scorer_names.BUNDLED


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scorer": "maths"}, '"scorer" is "maths"; expected "math", or one that a module of scorer_modules registers'),
        (
            {"scorer": "zzz"},
            '"scorer" is "zzz"; expected one of agentcpm, asearcher, diversity, exact_match, f1, includes',
        ),
        ({"scorer": "agentcpm"}, '"scorer" is "agentcpm", which needs a judge: agent_config_path, a file with'),
        ({"scorer": "json_schema"}, 'which needs a schema; expected an object in "metadata.json_schema"'),
        (
            {"tools": ["search"]},
            '"tools" names "search", but the samplers have no tool servers; give --mcp_manager_url',
        ),
    ],
)
def test_a_task_that_no_sampler_can_play_is_an_error(fields: dict[str, Any], said: str) -> None:
    (problem,) = problems(ALL, **fields)
    assert said in problem


def test_the_sampler_that_a_task_names_is_one_that_the_run_has() -> None:
    ours = Samplers(
        knows_samplers=True,
        named=BUNDLED | {"grid": BUNDLED["agent"]},
        has_tools=False,
        lacking={"agent": "x"},
        elsewhere="external",
    )
    assert problems(ours, sampler="grid", tools=["x"]) == problems(ours, sampler="mcp") == []
    (unknown,) = problems(ours, sampler="gird")
    assert unknown == '"sampler" is "gird"; expected "grid", or one that the setting samplers gives to a class'
    (lacking,) = problems(ours, sampler="agent")
    assert lacking == '"sampler" is "agent", for which the samplers lack a setting: x'
    (toolless,) = problems(ours, sampler="mcp", tools=["x"])
    assert "no tool servers" in toolless
    for samplers, name, said in ((ours, "external", "wait for a gateway"), (Samplers(), "grid", "skip these tasks")):
        check = TaskCheck(samplers)
        assert list(check.problems(payload(sampler=name, scorer="mine"))) == []
        assert said in next(iter(check.warnings))


def test_a_playable_task_has_no_error() -> None:
    assert problems(ALL, scorer="math") == problems(ALL) == problems(ALL, tools=[]) == []
    able = Samplers(knows_scorers=True, has_judge=True, has_tools=True)
    assert problems(able, scorer="asearcher", tools=["x"]) == []
    assert problems(Samplers(default=BUNDLED["agent"], has_judge=False), scorer="unknown") == []
    (problem,) = problems(able, scorer="agentcpm", answer=" ")
    assert 'compares with an answer; expected "answer"' in problem


@pytest.mark.parametrize("scorer", [*COMPARING, None])
@pytest.mark.parametrize("answer", [None, "", " ", ["", "\t"]])
def test_a_comparing_scorer_and_no_answer_is_an_error(scorer: str | None, answer: Any) -> None:
    """None: the samplers' default."""
    able = Samplers(knows_scorers=True, has_judge=True, default_scorers=("exact_match",))
    (problem,) = problems(able, scorer=scorer, answer=answer)
    assert "every reply would be scored 0" in problem
    assert problems(able, scorer="diversity", answer=answer) == []
    assert problems(able, scorers=[{"name": "diversity"}, {"name": "math"}], answer=answer) != []
    assert problems(able, scorer=scorer, answer=["", "4"]) == []
    of_feedback = Samplers(knows_scorers=True, has_judge=True, default_scorers=())
    assert bool(problems(of_feedback, scorer=scorer, answer=answer)) == (scorer is not None)
    assert problems(able, scorer=scorer, answer=answer, sampler="environment") == []


def test_where_the_default_scorers_are_not_known_a_missing_answer_is_told_with_its_place() -> None:
    check = TaskCheck(Samplers())
    assert list(check.problems(payload(answer=None), "t.jsonl:3")) == []
    assert list(check.problems(payload(answer=""), "t.jsonl:9")) == []
    (text,) = check.counted_warnings
    assert text.startswith('2 tasks: no "answer" and no "scorer": by the default scorers every reply would be scored 0')
    assert text.endswith("(the first: t.jsonl:3)")


def test_uncertain_problems_are_bounded_warnings_with_the_number_of_tasks() -> None:
    check = TaskCheck(Samplers())
    for fields in [{"scorer": "mine"}, {"scorer": "mine"}, {"scorer": "agentcpm"}, {"tools": ["x"]}, {"tools": ["x"]}]:
        assert list(check.problems(payload(**fields))) == []
    (mine, count), (judged, one) = check.warnings.items()
    assert (mine.startswith('"scorer" is "mine"; expected one of '), count) == (True, 2)
    assert "Samplers without a module that registers it (scorer_modules) skip these tasks" in mine
    assert (judged.startswith('"scorer" is "agentcpm", which needs a judge'), one) == (True, 1)
    assert check.demands == [TaskDemand((), None, (), 3), TaskDemand((), ("x",), (), 2)]
    for n in range(100):
        list(check.problems(payload(scorer=f"mine{n}")))
    assert len(check.warnings) == MAX_WARNINGS


def test_a_registered_scorer_is_known() -> None:
    assert problems(ALL, scorer="tests_mine")
    scorer_names.remember("tests_mine", needs_judge=False)
    assert problems(ALL, scorer="tests_mine") == []


async def test_nothing_of_a_file_with_a_problem_is_imported_and_each_line_of_it_is_named(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        "".join(
            f'{{"id": "{n}", "query": "q", "answer": "4", "scorer": "{"maths" if n else "math"}"}}\n'
            for n in range(3000)
        )
    )
    target = ImportTarget(check=TaskCheck(ALL))
    with pytest.raises(TaskFileError) as caught:
        await import_task_file(store, path, target)
    assert [error.number for error in caught.value.errors] == list(range(2, 22))
    assert await store.tasks.count_by_status() == {}
    with pytest.raises(TaskFileError, match=rf'{path}:2: "scorer" is "maths"; expected "math"'):
        check_playable(path, target)
    replaced = ImportTarget(settings={"scorer": "math"}, check=TaskCheck(ALL))
    check_playable(path, replaced)
