"""The examples of docs/bring/scorers.md behave as described there."""

import json
import re
from pathlib import Path

import pytest
import yaml

from sampler.core.scorers import registry
from sampler.core.scorers.registry import is_group_scorer, score_group
from sampler.scorers import GroupEpisode, GroupRequest, ScoringRequest, score_answer
from sampler.settings import SamplerConfig
from shared.documents import TaskPayload

PAGE = (Path(__file__).parents[2] / "docs" / "bring" / "scorers.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))
    for block in blocks("python"):
        exec(block, {})


@pytest.mark.usefixtures("registered")
async def test_scorers_of_the_page_register_and_score() -> None:
    values = [
        (await score_answer(name, ScoringRequest(answer, (accepted,)))).value
        for name, answer, accepted in (
            ("close_enough", "100.5", "100"),
            ("close_enough", "103", "100"),
            ("close_enough", "many", "100"),
            ("same", "a", "a"),
            ("same", "a", "b"),
            ("brief", None, ""),
        )
    ]
    assert values == [1, 0, 0, 1, 0, 1]
    wordy = ScoringRequest(None, (), reply="six words are more than five", payload={"metadata": {"most_words": 5}})
    assert (await score_answer("brief", wordy)).value == 0
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "lookup", "arguments": {}}}]}
    for messages, value in (((), 0), (({"role": "user", "content": "q"}, called), 1)):
        assert (await score_answer("looked_it_up", ScoringRequest(None, (), messages=messages))).value == value


@pytest.mark.usefixtures("registered")
async def test_tasks_and_settings_of_the_page_are_accepted() -> None:
    lines = [json.loads(line) for block in blocks("json") for line in block.splitlines()]
    scores = []
    for line, answer in zip(lines, ["It was Goethe.", '{"x": 1, "y": 2}', "28", "", "28"], strict=True):
        payload = TaskPayload.model_validate({k: v for k, v in line.items() if k != "id"})
        request = ScoringRequest(answer, (payload.answer or "",), payload=payload.model_dump())
        scores.append(
            [(await score_answer(name, request)).value for name in payload.scorer_names if not is_group_scorer(name)]
        )
    assert scores == [[1], [1], [1, 1, 0], [], [1]]
    episodes = tuple(GroupEpisode(f"r{at}", 0.0, None, reply) for at, reply in enumerate(("short", "longer")))
    group = GroupRequest(accepted=(), query="q", episodes=episodes)
    assert [score.value for score in await score_group("shortest_wins", group)] == [1, 0]
    for block in blocks("yaml"):
        given = yaml.safe_load(block)["sampler"]
        config = SamplerConfig(run="r", db_connection_string="x", model_name_or_path=Path("."), **given)
        assert config.scoring.scorer_modules == ["my_pkg.scorers"]


def test_every_scorer_is_on_the_page() -> None:
    own = {
        name
        for name, entry in registry._SCORERS.items()
        if entry.scorer.__module__.startswith("sampler.bundled_scorers")
    }
    table = PAGE[PAGE.index("\n| scorer |") :].split("\n\n", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert own == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
