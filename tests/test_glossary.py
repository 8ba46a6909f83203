"""Every definition that docs/glossary.md names is where it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+?) \| [^|]+ \| `([^`]+)`: `(\w+)` \|$", PAGE, re.MULTILINE)
FILES = sorted(set(re.findall(r"`((?:shared|sampler|trainer|docs|tests)/[\w/]+\.(?:py|md))`", PAGE)))


@pytest.mark.parametrize(("term", "file", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_a_term_is_defined_where_the_page_says(term: str, file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"\b{name}\b", text), f"docs/glossary.md: {term!r} names {name!r}, which is not in {file}"


def test_every_row_is_read_and_every_file_is_there() -> None:
    tables = PAGE.split("## The run and its documents")[1]
    assert len(ROWS) == len(re.findall(r"^\| (?!term|-)", tables, re.MULTILINE))
    assert len({term for term, _, _ in ROWS}) == len(ROWS)
    assert [file for file in FILES if not (ROOT / file).is_file()] == []
