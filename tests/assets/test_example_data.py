"""The bundled tasks are reproducible and their evaluation part is unseen; demonstrations show what the tools answer."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from demonstrations import demonstrations
from make_example import write_data, write_jsonl
from tasks import build_example
from world import TOOLS, LookupFailed, World, calculate

BOX = re.compile(r"\b[A-Z]{2}[0-9]{2}\b")
OWNER = re.compile(r"\b[A-Z]{4}\b")
SUM = re.compile(r"[0-9]+[+*-][0-9]+")


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def train(example_dir: Path) -> list[dict[str, str]]:
    return read_lines(example_dir / "train.jsonl")


@pytest.fixture(scope="module")
def evaluation(example_dir: Path) -> list[dict[str, str]]:
    return read_lines(example_dir / "eval.jsonl")


MIX = [f"mix/{part}{name}.jsonl" for part in ("", "eval_") for name in ("sums", "boxes", "colors")]


@pytest.mark.parametrize("name", ["train.jsonl", "eval.jsonl", "world.json", *MIX])
def test_committed_data_equal_what_the_script_writes(
    name: str, example: Any, example_dir: Path, tmp_path: Path
) -> None:
    write_data(example, seed=7, folder=tmp_path)
    assert (tmp_path / name).read_bytes() == (example_dir / name).read_bytes()


def test_demonstrations_are_the_same_bytes_every_time(example: Any, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_jsonl(tmp_path / name, demonstrations(build_example(seed=7), count=300, seed=7))
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    write_jsonl(tmp_path / "other", demonstrations(example, count=300, seed=8))
    assert (tmp_path / "other").read_bytes() != (tmp_path / "first").read_bytes()


def test_both_families_make_up_half_of_the_tasks(train: list[dict[str, str]], evaluation: list[dict[str, str]]) -> None:
    assert len(train) >= 2_000
    assert len(evaluation) == 200
    for tasks in (train, evaluation):
        assert sum(task["source"] == "lookup" for task in tasks) == len(tasks) / 2
        first_half = tasks[: len(tasks) // 2]
        assert 0.3 < sum(task["source"] == "lookup" for task in first_half) / len(first_half) < 0.7  # shuffled


def test_task_ids_are_unique_across_both_files(train: list[dict[str, str]], evaluation: list[dict[str, str]]) -> None:
    ids = [task["id"] for task in train + evaluation]
    assert len(set(ids)) == len(ids)


def test_no_evaluation_box_owner_or_sum_is_in_training(
    train: list[dict[str, str]], evaluation: list[dict[str, str]], example: Any, example_dir: Path
) -> None:
    train_text, eval_text = json.dumps(train), json.dumps(evaluation)
    train_mix = "".join((example_dir / name).read_text() for name in MIX if "eval_" not in name)
    eval_mix = "".join((example_dir / name).read_text() for name in MIX if "eval_" in name)
    for pattern in (BOX, OWNER, SUM):
        assert not set(pattern.findall(eval_mix)) & set(pattern.findall(train_mix))
    assert len(set(BOX.findall(eval_text))) == 100
    assert not set(BOX.findall(eval_text)) & set(BOX.findall(train_text))
    assert not set(SUM.findall(eval_text)) & set(SUM.findall(train_text))
    owners = example.world.owners
    assert not {owners[box] for box in BOX.findall(eval_text)} & {owners[box] for box in BOX.findall(train_text)}


def test_no_demonstration_shows_an_evaluation_box_owner_or_sum(
    demos: list[dict[str, Any]], evaluation: list[dict[str, str]], example: Any
) -> None:
    text, eval_text = json.dumps(demos), json.dumps(evaluation)
    eval_owners = {example.world.owners[box] for box in BOX.findall(eval_text)}
    assert not set(BOX.findall(eval_text)) & set(BOX.findall(text))
    assert not eval_owners & set(OWNER.findall(text))
    assert not set(SUM.findall(eval_text)) & set(SUM.findall(text))


def test_demonstrated_tool_results_are_what_the_tools_answer(demos: list[dict[str, Any]], example: Any) -> None:
    """The box in the question, and the owner that was answered, count as registered in their demonstration."""
    for demo in demos:
        world = World(dict(example.world.owners), dict(example.world.favorite_colors))
        asked_for = set(BOX.findall(demo["messages"][0]["content"]))
        for message, result in pairwise(demo["messages"]):
            for call in message.get("tool_calls", ()):
                assert result["role"] == "tool"
                (value,) = json.loads(call["function"]["arguments"]).values()
                if value in asked_for:
                    assert not result["content"].startswith("unknown")
                    world.owners.setdefault(value, result["content"])
                    world.favorite_colors.setdefault(value, result["content"])
                    asked_for = {result["content"]}
                assert result["content"] == tool_answer(world, call["function"]["name"], value), demo


def tool_answer(world: World, tool: str, value: str) -> str:
    tools = {"calculator": calculate, "box_owner": world.box_owner, "favorite_color": world.favorite_color}
    try:
        return str(tools[tool](value))
    except LookupFailed as error:
        return str(error)


def test_demonstrations_err_often_enough_to_leave_something_to_learn(demos: list[dict[str, Any]]) -> None:
    """0.64 per decision: two decisions in a sum, four in a look-up, plus a few lucky guesses."""
    faultless = {"arithmetic": 0, "lookup": 0}
    for demo in demos:
        family = "lookup" if "box" in demo["messages"][0]["content"] else "arithmetic"
        faultless[family] += is_faultless(demo["messages"])
    assert 0.36 < faultless["arithmetic"] / (len(demos) / 2) < 0.47
    assert 0.13 < faultless["lookup"] / (len(demos) / 2) < 0.23
    assert all(demo["tools"] == TOOLS for demo in demos)


def is_faultless(messages: list[dict[str, Any]]) -> bool:
    """Every value called with or answered was read before, and a look-up looked up twice."""
    seen = messages[0]["content"]
    for message in messages[1:]:
        for call in message.get("tool_calls", ()):
            (value,) = json.loads(call["function"]["arguments"]).values()
            if value not in seen:
                return False
        seen += f" {message['content']}"
    assert messages[-1]["content"] == f"<answer>{messages[-2]['content']}</answer>" or len(messages) == 2
    return len(messages) == (6 if "box" in messages[0]["content"] else 4)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("47+38", 85), ("3-50", -47), ("2+3*4", 14), ("(2+3)*4", 20), ("-5--6", 1), (" 7 * 8 ", 56)],
)
def test_the_calculator_follows_the_order_of_operations(expression: str, value: int) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "4**9",
        "4+",
        "07+1",
        "7/2",
        "1_000",
        "9**9**9",
        "__import__('os')",
        "x",
        "(" * 40,
        "9" * 41,
        "2,3",
        "٣+1",
        "1(2)",
    ],
)
def test_the_calculator_refuses_whatever_is_not_a_sum_of_whole_numbers(expression: str) -> None:
    with pytest.raises(LookupFailed, match="malformed expression"):
        calculate(expression)
