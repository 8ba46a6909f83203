"""Every definition that docs/inside/glossary.md names is where it says, and so is every file that a page names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "inside" / "glossary.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+?) \| [^|]+ \| `([^`]+)`: `(\w+)` \|$", PAGE, re.MULTILINE)
FILES = sorted(set(re.findall(r"`((?:shared|sampler|trainer|docs|tests)/[\w/]+\.(?:py|md))`", PAGE)))


@pytest.mark.parametrize(("term", "file", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_a_term_is_defined_where_the_page_says(term: str, file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    definition = rf"^\s*((async )?def|class) {name}\b|^\s*{name}(: | = )" if file.endswith(".py") else rf"\b{name}\b"
    assert re.search(definition, text, re.MULTILINE), (
        f"docs/inside/glossary.md: {term!r} names {name!r}, not defined in {file}"
    )


def test_every_row_is_read_and_every_file_is_there() -> None:
    tables = PAGE.split("## The run and its documents")[1]
    assert len(ROWS) == len(re.findall(r"^\| (?!term|-)", tables, re.MULTILINE))
    assert len({term for term, _, _ in ROWS}) == len(ROWS)
    assert [file for file in FILES if not (ROOT / file).is_file()] == []


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = re.compile(r"`((?:\w+/)+(?:[\w.]+\.(?:py|md|yml|sh|txt|json|jsonl))?|\w+\.py)`")
OF_OTHERS = ("assets/fsdp2_dst.yml", "assets/agent_config.yml")  # files of AgentRL
ROOMS = ("shared/", "sampler/", "trainer/", "scripts/", "tests/", "docs/", "assets/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    """In the line "In the code" a name without a folder lies in the folder of the last name that has one."""
    missing = []
    for line in page.read_text(encoding="utf-8").splitlines():
        folder = ROOT
        for name in NAMED.findall(line):
            if name.startswith(ROOMS) and name not in OF_OTHERS:
                found = ROOT / name
                folder = found.parent
            elif line.startswith("In the code: "):
                found = folder / name
            else:
                continue
            if not found.exists():
                missing.append(name)
    assert missing == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=lambda page: page.name)
def test_a_page_about_a_part_names_the_files_of_that_part_before_its_first_section(page: Path) -> None:
    about_all = {"index.md", "compared.md", "glossary.md", "from_agentrl.md", "writes.md", "api.md", "settings.md"}
    beginning = page.read_text(encoding="utf-8").partition("\n## ")[0]
    assert page.name in about_all or "\n\nIn the code: " in beginning
