"""The Python and shell tools of MCP-Docker: state, output, time-outs."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.mcp_docker.tools import shell
from sampler.mcp_docker.tools.python import PythonArguments, PythonNotebook
from sampler.mcp_docker.tools.serving import ToolArguments
from shared.sandbox.bounded_output import BoundedOutput

pytestmark = pytest.mark.slow
WRITES_EVERYWHERE = """
import os, time
for descriptor in sorted({*range(1, 20), *map(int, os.listdir("/proc/self/fd"))}):
    for text in (b"x" * 9000, b"\\n", b"junk\\n"):
        try:
            os.write(descriptor, text)
        except OSError:
            pass
time.sleep(0.5)
print(6 * 7)
"""


# ---------------------------------------------------------------- python


async def test_python_keeps_its_state_and_shows_values_output_and_errors(folder: Path) -> None:
    notebook = PythonNotebook()
    try:
        assert await notebook.execute(PythonArguments(code="import math\nx = 20\nx + 1")) == "21\n"
        assert (
            await notebook.execute(PythonArguments(code="print(x * 2); open('f', 'w').write('a') and None")) == "40\n"
        )
        assert (folder / "f").read_text() == "a"
        shown = await notebook.execute(PythonArguments(code="def f():\n    return 1 / 0\nf()"))
        assert "ZeroDivisionError" in shown
        assert "python_worker" not in shown, "the traceback is the code's own"
        assert "SyntaxError" in await notebook.execute(PythonArguments(code="x ="))
        assert "SystemExit: 3" in await notebook.execute(PythonArguments(code="import sys; sys.exit(3)"))
        assert (
            await notebook.execute(PythonArguments(code="import subprocess; subprocess.run(['echo', 'child']); x"))
            != ""
        )
        assert await notebook.restart(ToolArguments()) == "the state is empty"
        assert "NameError" in await notebook.execute(PythonArguments(code="x"))
    finally:
        await notebook.restart(ToolArguments())


async def test_python_code_that_writes_to_other_descriptors_is_answered_with_its_output(folder: Path) -> None:
    notebook = PythonNotebook()
    code = WRITES_EVERYWHERE
    try:
        for _ in range(3):
            assert (await notebook.execute(PythonArguments(code=code))).endswith("42\n")
            assert await notebook.execute(PythonArguments(code="print(1)")) == "1\n"
    finally:
        await notebook.restart(ToolArguments())


@pytest.mark.parametrize(
    ("code", "end", "kept"),
    [
        ("while True: pass", "interrupted", True),
        ("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "killed", False),
        ("import time\nwhile True:\n  try:\n    time.sleep(60)\n  except BaseException: pass", "killed", False),
        ("import os; os._exit(3)", "ended (status 3)", False),
        ("import os; os.closerange(3, 1 << 16)", "ended (status 1)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended (signal 9)", False),
    ],
)
async def test_python_code_that_does_not_return_is_ended(folder: Path, code: str, end: str, kept: bool) -> None:
    notebook = PythonNotebook()
    try:
        await notebook.execute(PythonArguments(code="x = 1"))
        limit_s = 30 if end.startswith("ended") else 0.3  # it ends by itself, on a busy machine later
        assert end in await notebook.execute(PythonArguments(code=code, timeout_s=limit_s))
        assert ("NameError" in await notebook.execute(PythonArguments(code="x"))) != kept
    finally:
        await notebook.restart(ToolArguments())


async def test_much_output_is_bounded_with_its_beginning_and_end(folder: Path) -> None:
    notebook = PythonNotebook()
    try:
        shown = await notebook.execute(PythonArguments(code="print('begin'); print('x' * 30_000_000); print('end')"))
    finally:
        await notebook.restart(ToolArguments())
    assert shown.startswith("begin\n")
    assert shown.endswith("end\n")
    assert len(shown) < 21_000
    shown = await shell.run_command(shell.ShellArguments(command="head -c 20000000 /dev/zero | tr '\\0' y; echo end"))
    assert shown.endswith("end\n\n[exit status 0]")
    assert len(shown) < 21_000


@given(st.lists(st.binary(max_size=50)), st.integers(2, 60))
def test_bounded_output_keeps_head_and_tail_and_counts_the_rest(pieces: list[bytes], most: int) -> None:
    output = BoundedOutput(most)
    for piece in pieces:
        output.add(piece.replace(b"\xe2", b"").decode("ascii", "ignore").encode())
    whole = b"".join(piece.replace(b"\xe2", b"").decode("ascii", "ignore").encode() for piece in pieces).decode()
    half = most // 2
    if len(whole) <= 2 * half:
        assert output.text == whole
    else:
        gap = f"\n[… {len(whole) - 2 * half} bytes of output left out …]\n"
        assert output.text == whole[:half] + gap + whole[len(whole) - half :]


# ---------------------------------------------------------------- shell


async def test_shell_reports_status_and_kills_at_its_time(folder: Path) -> None:
    assert (
        await shell.run_command(shell.ShellArguments(command="echo a; echo b >&2; exit 4")) == "a\nb\n\n[exit status 4]"
    )
    deaf = "trap '' TERM INT; echo begin; while :; do sleep 0.1; done"
    assert await shell.run_command(shell.ShellArguments(command=deaf, timeout_s=0.5)) == "begin\n\n[killed after 0.5 s]"
    background = await shell.run_command(shell.ShellArguments(command="sleep 30 & echo $!", timeout_s=20))
    assert "[exit status 0]" in background, "a process in the background holds the pipe, and is not waited for"
    os.kill(int(background.split()[0]), 9)
