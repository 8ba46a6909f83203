"""Hundreds of texts in all families, read by our parsers and by those of two engines (recorded): nothing becomes a call that the
text does not hold, and where an engine reads what was meant, so do ours. The table: `tests/sampler/parser_table.py`."""

import os
from pathlib import Path

import pytest

from tests.sampler import parser_table
from tests.sampler.call_forms import FORMS
from tests.sampler.call_texts import Text, texts
from tests.sampler.parser_table import ENGINES, outcome, own_verdict, recorded

SGLANG = Path(__file__).parents[2] / ".sglang" / "venv" / "bin" / "python"
TEXTS = {text.name: text for text in texts()}
# A reply that stops before its end tag may have been cut. An engine that reads it calls what the model had not finished.
CUT = {"hermes: no end tag", "glm45: no end tag"}
# Answers in JSON: a name alone is no call.
ANSWERS = {
    "llama3, no tag: no name for arguments",
    "llama3, no tag: arguments as members of the call",
    "llama3, no tag: no name",
}


def test_there_are_hundreds_of_texts_and_each_has_recorded_verdicts() -> None:
    rows = recorded()
    assert len(TEXTS) > 500
    assert {name: row["text"] for name, row in rows.items()} == {name: text.text for name, text in TEXTS.items()}
    for engine in ENGINES:
        missing = {TEXTS[name].form.family for name, row in rows.items() if row[engine] is None}
        assert missing == {"minicpm"}, f"{engine} has no parser of it"


def test_a_text_is_read_as_it_was_meant_or_is_an_error() -> None:
    found = {name: outcome(text, own_verdict(text)) for name, text in TEXTS.items()}
    assert {name for name, one in found.items() if one not in ("as meant", "error")} == ANSWERS
    assert {found[name] for name in ANSWERS} == {"text"}


def test_what_an_engine_reads_as_meant_is_read_as_meant() -> None:
    rows = recorded()
    behind = {
        name
        for name, text in TEXTS.items()
        if any(outcome(text, rows[name][engine]) == "as meant" for engine in ENGINES)
        and outcome(text, own_verdict(text)) != "as meant"
    }
    assert behind == CUT


def test_the_engines_call_what_no_text_holds() -> None:
    """Else the comparison would not notice it of ours."""
    rows = recorded()
    for engine in ENGINES:
        found = [outcome(text, rows[name][engine]) for name, text in TEXTS.items()]
        assert found.count("other") >= 20
        assert found.count("called") > 50


def test_a_call_with_other_arguments_is_noticed() -> None:
    text = Text("one call", FORMS[0], "<tool_call>…", [("f", {"city": "5"})])
    assert outcome(text, {"calls": [["f", {"city": 5}]], "content": ""}) == "other"
    assert outcome(text, {"calls": [["f", {"city": "5"}]], "content": ""}) == "as meant"
    assert outcome(text, {"calls": [["g", {}]], "content": "", "errors": ["is not closed"]}) == "other"
    assert outcome(text, {"calls": [], "content": "Well"}) == "lost"
    assert outcome(text, {"calls": [], "content": "Well: <tool_call>…"}) == "text"
    assert outcome(text, {"calls": [["f", "Paris"]], "content": ""}) == "unusable"


def test_the_page_has_the_table_of_now() -> None:
    page = parser_table.PAGE.read_text(encoding="utf-8")
    assert parser_table.page_with(parser_table.table()) == page, "run python -m tests.sampler.parser_table --write"


def test_every_row_in_which_the_readings_differ_says_why() -> None:
    rows = [row for row in parser_table.table().split("| why |")[1].splitlines() if row.startswith("| ")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.slow
@pytest.mark.skipif(
    not SGLANG.is_file() or os.environ.get("CHECK_SGLANG") == "0", reason="scripts/sglang_cpu.sh installs it"
)
@pytest.mark.thorough
def test_the_recorded_verdicts_are_those_of_the_installed_sglang() -> None:
    rows = recorded()
    found = parser_table.verdicts_of("sglang", str(SGLANG), list(TEXTS.values()))
    assert dict(zip(TEXTS, found, strict=True)) == {name: row["sglang"] for name, row in rows.items()}
