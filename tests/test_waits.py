"""Every wait of a process of a run is a `Wait`: it has an owner, a reason and an end, which `tandem status` and the display show.

The source is read: a loop that sleeps until something is so, or an `await` without a limit on something that another task or
process does, stands in a function that calls `waiting` or `queued`, or in `tests/unowned_waits.py`, with the reason.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unowned_waits import FOLDERS, UNOWNED

ROOT = Path(__file__).parents[1]
READ = ("sampler", "trainer", "shared", "scripts")
SLEEPS = {"sleep", "pause", "wait", "wait_for", "until"}  # `pause`: of a PollTimer
ENDLESS = {"wait", "acquire"}
OWNERS = {"waiting", "queued"}
LIMITS = {"timeout", "wait_for", "time_limit"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def unowned(tree: ast.Module) -> list[str]:
    """Names of functions, such as `Class.function`, that wait without a `Wait`."""
    return [name for name, function in functions(tree, "") if waits(function) and not calls(function, OWNERS)]


def functions(node: ast.AST, where: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{where}{child.name}", child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(child, f"{where}{child.name}.")
        else:
            yield from functions(child, where)


def waits(function: Function) -> bool:
    own = list(inside(function))
    polls = any(isinstance(node, ast.While | ast.For | ast.AsyncFor) and sleeps_until(node) for node in own)
    endless = any(isinstance(node, ast.Await) and is_endless(node.value) for node in own)
    return polls or (endless and not calls(function, LIMITS))


def sleeps_until(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    """A loop without an end is periodic work, and no wait."""
    own = [node for statement in loop.body for node in [statement, *inside(statement)]]
    is_endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
    has_exit = not is_endless or any(isinstance(node, ast.Return | ast.Break) for node in own)
    return has_exit and any(isinstance(node, ast.Call) and name_of(node) in SLEEPS for node in own)


def is_endless(call: ast.expr) -> bool:
    """`await x.wait()`, `await x.acquire()`, `await asyncio.wait(tasks)`."""
    if not isinstance(call, ast.Call) or name_of(call) not in ENDLESS:
        return False
    return not any(keyword.arg == "timeout" for keyword in call.keywords)


def calls(function: Function, names: set[str]) -> bool:
    return any(isinstance(node, ast.Call) and name_of(node) in names for node in inside(function))


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """What belongs to the node, without functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from inside(child)


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.cache
def all_unowned() -> frozenset[str]:
    found: set[str] = set()
    for folder in READ:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            source = path.read_text(encoding="utf-8")
            if not name.startswith(tuple(FOLDERS)) and any(f"{word}(" in source for word in SLEEPS | ENDLESS):
                found |= {f"{name}:{one}" for one in unowned(ast.parse(source))}
    return frozenset(found)


def test_every_wait_has_an_owner_a_reason_and_an_end() -> None:
    new = sorted(all_unowned() - set(UNOWNED))
    assert not new, (
        "these wait without `waiting(Wait(what, why, until))` around the loop (shared/processes/waits.py), so that `tandem "
        f"status` and the display say nothing of it; or give the reason in tests/unowned_waits.py: {new}"
    )


def test_the_list_holds_no_wait_that_is_gone() -> None:
    assert sorted(set(UNOWNED) - all_unowned()) == []
    assert [folder for folder in FOLDERS if not (ROOT / folder).exists()] == []


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        ("while not ready():\n        await asyncio.sleep(1)", True),
        ("while True:\n        if ready():\n            return\n        time.sleep(1)", True),
        ("for _ in range(9):\n        await wait_for(event, 1)", True),
        ("await event.wait()", True),
        ("await asyncio.wait(tasks)", True),
        ("await asyncio.wait(tasks, timeout=1)", False),
        ("async with asyncio.timeout(1):\n        await event.wait()", False),
        ("while True:\n        await beat()\n        await asyncio.sleep(1)", False),
        ("with waiting(Wait('a', 'b', 'c')):\n        while not ready():\n            await asyncio.sleep(1)", False),
        ("async with queued(Wait('a', 'b', 'c')):\n        await places.acquire()", False),
    ],
)
def test_what_counts_as_a_wait(body: str, waits: bool) -> None:
    tree = ast.parse(f"class Owner:\n  async def function(self):\n    pass\n    {body}\n")
    assert unowned(tree) == (["Owner.function"] if waits else [])
