"""Every `python -m MODULE` that code, scripts or pages name is a program: one without ends at once, with status 0.

A page may name one of an earlier version: "`COMMAND` of commit HASH".
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("shared", "sampler", "trainer", "scripts", "assets", "tests", "docs", "README.md", "CONTRIBUTING.md")
KINDS = {".py", ".sh", ".md", ".yml", ""}
# On a command line, in a list of its words, and in what `scripts.bench.sampler_under_test` starts.
NAMED = re.compile(
    r"""(?:-m["',\s]+|self\.child\(")((?:shared|sampler|trainer|scripts|assets|tests)(?:\.[a-z]\w*)*)(?![\w./-])"""
    r"(?![^`\n]*` of commit [0-9a-f]{8})"
)


def named() -> dict[str, str]:
    """{module: a file that names it}"""
    found: dict[str, str] = {}
    for place in (ROOT / name for name in PLACES):
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and path.suffix in KINDS:
                text = path.read_text(encoding="utf-8")
                found |= dict.fromkeys(NAMED.findall(text), path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize(("module", "file"), sorted(named().items()))
def test_a_module_that_is_started_by_name_is_a_program(module: str, file: str) -> None:
    place = ROOT.joinpath(*module.split("."))
    source = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
    assert source.is_file(), f"{file} starts {module}, which is not there"
    program = re.search(r'^if __name__ == "__main__":|^main\(\)|^run_command\(', source.read_text(), re.MULTILINE)
    assert program, f"{file} starts {module}, which does nothing when it is run"
