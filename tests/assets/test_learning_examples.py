"""The tasks of the examples that learn (docs/bring/environments.md): they are valid, and what is held out is held out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assets.calculator import worker
from assets.five_kinds import make as five_kinds
from shared.tasks.lines import checked_lines
from tests.conftest import ROOT
from tests.sampler.environments.package_services import python_with

SAID = (("user", "Which color does the owner of box VU91 like?"), ("tool", "OLEK"), ("tool", "pink"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def made(module: str, folder: Path, package: str) -> Path:
    """What `python -m MODULE FOLDER` writes, in a Python that has the package."""
    command = [python_with(package), "-m", module, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_no_sum_of_the_calculators_evaluation_is_a_training_one(tmp_path: Path) -> None:
    worker.write_tasks(tmp_path)
    train, held_out = (
        [line.payload.query for line in checked_lines(tmp_path / f"{s}.jsonl")] for s in ("train", "eval")
    )
    assert (len(train), len(held_out)) == (worker.TRAIN, worker.EVAL)
    assert not set(train) & set(held_out)
    assert [worker.computed(text) for text in ("7*8", " 3 - 10", "2+", "9**9", "__import__('os')")] == [
        "56",
        "-7",
        *(f"malformed expression {text}, use numbers with + - *" for text in ("2+", "9**9", "__import__('os')")),
    ]


def test_the_five_kinds_have_valid_tasks_and_ask_nothing_held_out_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a warm-start conversation."""
    calculator, puzzles = tmp_path / "calculator", tmp_path / "puzzles"
    worker.write_tasks(calculator)
    held_out_sum = lines(calculator / "eval.jsonl")[0]["query"]
    puzzles.mkdir()
    task = {"id": "p", "query": "p", "source": five_kinds.PUZZLE, "sampler": "environment"}
    for split in ("train", "eval"):
        five_kinds.write(puzzles / f"{split}.jsonl", [task])
    asked = [{"role": "system", "content": ""}, {"role": "user", "content": five_kinds.PUZZLE_BEGINS}]
    five_kinds.write(puzzles / "demonstrations.jsonl", [{"messages": asked, "tools": []}])
    example = tmp_path / "example.jsonl"
    questions = ("What is 1+1?", held_out_sum)
    talks = [{"messages": [{"role": "user", "content": question}], "tools": []} for question in questions]
    five_kinds.write(example, talks)
    monkeypatch.setattr(sys, "argv", ["make", *map(str, (tmp_path, example, calculator, puzzles))])
    five_kinds.main()

    def texts(name: str) -> set[str]:
        return {line["query"].partition("text: ")[2] for line in lines(tmp_path / f"{name}.jsonl")}

    for name in five_kinds.KINDS:
        found = list(checked_lines(tmp_path / f"eval_{name}.jsonl"))
        assert len(found) == five_kinds.EVAL
        assert not texts(name) & texts(f"eval_{name}")
        for line in found:
            first, last = line.payload.query.split('"')[1].split()
            expected = first if "comes first" in line.payload.query else last
            assert line.payload.answer in (expected, [expected])
    shown = {
        talk["messages"][-2 if len(talk["messages"]) > 2 else -1]["content"]
        for talk in lines(tmp_path / "demonstrations.jsonl")
    }
    assert "What is 1+1?" in shown
    assert not [text for text in texts("eval_rounds") if any(text in question for question in shown)]
    later = {
        line["query"]
        for path in (five_kinds.MIX / "eval_sums.jsonl", calculator / "eval.jsonl")
        for line in lines(path)
    }
    trained = {line["query"] for name in ("sums", "calculator") for line in lines(tmp_path / f"{name}.jsonl")}
    assert not later & (trained | shown)
    assert len(trained) > 700


def test_a_warm_start_of_one_tool_asks_what_its_second_call_answers() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": name}}]}

    question, owner, color = ({"role": role, "content": text} for role, text in SAID)
    tools = [{"function": {"name": name}} for name in ("box_owner", "favorite_color")]
    talk = {"messages": [question, call("box_owner"), owner, call("favorite_color"), color], "tools": tools}
    asked = {"role": "user", "content": "Which color does OLEK like?"}
    assert five_kinds.alone(talk) == {"messages": [asked, call("favorite_color"), color], "tools": tools[1:]}


def test_nims_evaluation_begins_from_piles_that_no_training_game_begins_from(tmp_path: Path) -> None:
    folder = made("assets.nim.make", tmp_path, "textarena")
    piles = {
        split: {tuple(line["metadata"]["custom_task"]["options"]["piles"]) for line in lines(folder / f"{split}.jsonl")}
        for split in ("train", "eval")
    }
    assert (len(piles["eval"]), piles["train"] & piles["eval"]) == (12, set())
    assert {line.payload.sampler for line in checked_lines(folder / "train.jsonl")} == {"game"}
    for talk in lines(folder / "demonstrations.jsonl")[:50]:
        for asked, reply in zip(talk["messages"][::2], talk["messages"][1::2], strict=True):
            pile, taken = map(int, reply["content"].strip("[]").split())
            left = [int(row.rpartition(": ")[2]) for row in asked["content"].splitlines() if row.startswith("  pile")]
            assert 1 <= taken <= left[pile], "the rules are known"


def test_reasoning_gyms_evaluation_has_own_questions_and_no_frequent_answer() -> None:
    """A model that always says the same learns nothing of a family."""
    code = (
        "import json\n"
        "from collections import Counter\n"
        "from assets.reasoning_gym.make import FAMILIES, drawn\n"
        "for family in FAMILIES:\n"
        "    held_out = {question: answer for _, question, answer in drawn(family, 'eval', set())}\n"
        "    train = [question for _, question, _ in drawn(family, 'train', held_out)]\n"
        "    (_, most), *_ = Counter(held_out.values()).most_common()\n"
        "    print(json.dumps([len(train), len(held_out), len(held_out.keys() & set(train)), most]))\n"
    )
    found = subprocess.run(
        [python_with("reasoning_gym"), "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for line in found.stdout.splitlines():
        count, held_out, both, most = json.loads(line)
        assert (count, both) == (400, 0)
        assert held_out > 30
        assert most < held_out / 10
