"""Sphinx's settings of the rendered site: README is its first page, docs/index.md orders the others. See scripts/docs_site.sh.

Sphinx was chosen of the generators on PyPI in November 2026: it is released several times a year (MkDocs was last released in
August 2024, Zensical is before 1.0), refuses broken links and anchors, and its search needs neither a server nor a network.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
ORDER = ROOT / "docs" / "index.md"

project = "Tandem"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/**/*.md"]
exclude_patterns = [".*", "site", "output", "logs", "runs", "*.egg-info"]  # not walked
exclude_patterns += ["assets", "deploy", "sampler", "scripts", "shared", "tests", "trainer"]
myst_heading_anchors = 4  # by GitHub's rule, so that a link works in both places
html_theme = "furo"
html_title = "Tandem"
html_copy_source = False
html_show_sphinx = False
highlight_language = "none"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """The sidebar has the sections of docs/index.md, in its order."""
    if page == root_doc:
        source[0] += "".join(f"\n```{{toctree}}\n{block}\n```\n" for block in _sections())


def _sections() -> list[str]:
    blocks = [":hidden:\n\ndocs/index"]
    for section in ORDER.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading = section.partition("\n")[0].partition(":")[0]
        pages = re.findall(r"^\* \[.*?\]\((.*?)\.md\)", section, re.MULTILINE)
        blocks.append("\n".join([":hidden:", f":caption: {heading}", "", *(f"docs/{page}" for page in pages)]))
    return [*blocks, ":hidden:\n:caption: project\n\nCONTRIBUTING\nCHANGELOG"]
