"""The pages: every link leads somewhere, the index has each, each begins with its purpose and a command; README is short."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
INDEX = ROOT / "docs" / "index.md"
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path != INDEX)
README_WORDS = 1300
PURPOSE_WORDS = 70
LINK = re.compile(r"\]\(([^()\s]+)\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Without blocks of code, in which a bracket is no link and `#` is no heading."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """By GitHub's rule: lower case, blanks become hyphens, other signs go."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+?)\s*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
        found.add(f"{slug}-{number}" if number else slug)
    return found


@pytest.mark.parametrize("page", [*FRONT, INDEX, *PAGES], ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    broken = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_has_every_page_once_in_its_section() -> None:
    lines = re.findall(r"^\* \[.+?\]\((.+?)\): .+$", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(lines) == [page.relative_to(INDEX.parent).as_posix() for page in PAGES]
    sections = re.split(r"^## ", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for section in sections:
        name = re.match(r"\w+", section)
        assert name
        assert {line.partition("/")[0] for line in lines if f"]({line})" in section} == {name[0]}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_what_it_is_for_and_a_command(page: Path) -> None:
    blocks = page.read_text(encoding="utf-8").split("\n\n")
    title, purpose, command = blocks[:3]
    assert re.fullmatch(r"# .+", title)
    assert not purpose.startswith(("|", "* ", "#", "```", "In the code"))
    assert len(purpose.split()) <= PURPOSE_WORDS, "two sentences"
    assert re.match(r"(<!-- .* -->\n)?```bash\n", command), "then a command that works"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= README_WORDS


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("furo") is None, reason="the extra `docs` is not installed")
def test_the_site_is_built_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    words = ("-W", "--keep-going", "-q", "-b", "html", "-c", "scripts/docs_site", "-d", str(tmp_path / "trees"))
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, ".", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.stem for path in (tmp_path / "site" / "docs").rglob("*.html")} == {
        page.stem for page in [INDEX, *PAGES]
    }
    index = (tmp_path / "site" / "searchindex.js").read_text(encoding="utf-8")
    assert '"docs/bring/scorers"' in index
