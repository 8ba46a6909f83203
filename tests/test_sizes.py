"""A large class or function says why: `# 8 parameters: why` above it, with their number, which may only shrink."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

MOST = {"parameters": 6, "methods": 20, "fields": 25}
REASON = re.compile(r"# (\d+) (parameters|methods|fields)(?: and (\d+) (parameters|methods|fields))?: .{20,}")


@pytest.mark.parametrize("package", ["shared", "sampler", "trainer", "scripts"])
def test_what_is_large_says_why(package: str) -> None:
    large = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        if problems := found(path.read_text(encoding="utf-8")):
            large[str(path.relative_to(ROOT))] = problems
    assert large == {}


def test_a_large_function_a_large_class_and_a_number_that_is_too_high_are_found() -> None:
    wide = "def f(a, b, c, d, e, f, g): ...\n"
    reason = "# 7 parameters: each is one of the engine's own\n"
    tall = "class C:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(21))
    assert len(found(wide)) == len(found(tall)) == len(found(reason.replace("7", "8") + wide)) == 1
    assert found(reason + wide) == found(reason + "@cache\n" + wide) == []


def found(source: str) -> list[str]:
    lines = source.splitlines()
    return [problem for node in ast.walk(ast.parse(source)) for problem in problems_of(node, lines)]


def problems_of(node: ast.AST, lines: list[str]) -> Iterator[str]:
    counts = dict(counted(node))
    if not counts:
        return
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    reason = REASON.fullmatch(lines[first - 2].strip()) if first > 1 else None
    stated = {} if reason is None else {reason[2]: int(reason[1])} | ({reason[4]: int(reason[3])} if reason[3] else {})
    for what, count in counts.items():
        if stated.get(what) != count:
            yield f"{node.name} has {count} {what}; expected at most {MOST[what]}, or a line `# {count} {what}: why` above it"


def counted(node: ast.AST) -> Iterator[tuple[str, int]]:
    """What is more than `MOST`. Options of a command are not counted: typer reads them from the parameters."""
    if isinstance(node, ast.ClassDef):
        methods = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
        fields = sum(isinstance(one, ast.AnnAssign) for one in node.body)
        yield from ((what, n) for what, n in (("methods", methods), ("fields", fields)) if n > MOST[what])
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if len(given) > MOST["parameters"]:
            count = sum(one.arg not in ("self", "cls") and not is_option(one.annotation) for one in given)
            yield from [("parameters", count)] * (count > MOST["parameters"])


def is_option(annotation: ast.expr | None) -> bool:
    text = "" if annotation is None else ast.unparse(annotation)
    return text.startswith("Annotated[") and "typer." in text
