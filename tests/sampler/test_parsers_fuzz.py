"""Parsers against what no model should write: time stays linear, and `tests/sampler/fuzz_parsers.py` finds nothing, but would."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sampler.core.parsers import PARSERS, get_parser
from tests.sampler import fuzz_parsers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("parser", sorted(set(PARSERS) - {"qwen", "qwen25"}))
@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "<tool_call>{",
        "<tool_call></tool_call>",
        "</tool_call>",
        '<tool_call>{"a": "',
        "<tool_call>[",
        "<function=",
        "<function=f>",
        "<parameter=a>",
        "<arg_key>",
        "<arg_key>a</arg_key><arg_value>",
        "[TOOL_CALLS]",
        '[TOOL_CALLS]{"',
        "<|python_tag|>",
        '{"name": "f"}',
        '{"name":',
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>```",
        "<|tool_call_begin|>f<|tool_call_argument_begin|>",
        "<|tool_call_start|>",
        "<|tool_call_start|>f(x='",
        "[f(",
        "[f(x='",
        '[f(x="\\',
        '[f(x="""',
        "[f(x=[",
        "</think>",
        "<think>",
        "\n",
        " ",
        "```",
    ],
)
def test_time_is_linear_in_the_length(parser: str, unit: str) -> None:
    text = unit * (200_000 // len(unit))
    parse = get_parser(parser)
    costs = []
    for _ in range(3):  # the least: a collection of garbage in the middle says nothing of the parser
        began = time.thread_time()
        parse(text, ())
        parse(unit + text[: len(text) // 2] + "</tool_call>", ())
        costs.append(time.thread_time() - began)
        if costs[-1] < 1:
            return
    raise AssertionError(f"{costs} s")


def test_a_short_fuzz_over_all_parsers_and_extractors_finds_nothing() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.sampler.fuzz_parsers",
        "--count",
        "4000",
        "--seed",
        "3",
        "--limit-ms",
        "2000",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "crash 0, hang 0, lost 0, unfit 0" in done.stdout


def test_the_fuzz_notices_a_parser_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str, tools: object) -> object:
        if "Let me think" in text:
            raise RecursionError("too deep")
        return get_parser("qwen")(text.replace("<tool_call>", ""), ())

    monkeypatch.setitem(PARSERS, "hermes", broken)
    found, shown = fuzz_parsers.fuzz(0, 0, 2000.0, 60.0, fuzz_parsers.inputs(1, 300))
    assert found["crash"] > 0
    assert found["lost"] > 0
    assert any(line.startswith("hermes: crash: RecursionError") for line in shown)
