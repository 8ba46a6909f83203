"""A gateway of root's has groups that may read what others may not; its sessions have none of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from shared.sandbox import IsolationLevel
from tests.conftest import ROOT
from tests.sampler.test_secrets import needs_root
from tests.shared.sandbox.starting import LOCAL_LEVELS, PATIENCE_S, needs

pytestmark = pytest.mark.slow
GROUP = 54_321
LOOK = """
import os, sys
print(os.getgroups())
try:
    print(open(sys.argv[1]).read())
except OSError as exc:
    print(type(exc).__name__)
"""
SESSION = """
import asyncio, os, sys
from shared.sandbox import IsolationLevel
from tests.shared.sandbox.starting import python, ran, session_folder

async def main(level, code, path):
    async with session_folder() as folder:
        print((await ran(IsolationLevel(level), folder, *python(code), path)).output)

assert int(sys.argv[1]) in os.getgroups()
asyncio.run(main(*sys.argv[2:]))
"""


@needs_root
@pytest.mark.parametrize("level", LOCAL_LEVELS)
def test_a_session_has_no_group_of_the_gateways(level: IsolationLevel, tmp_path: Path) -> None:
    needs(level)
    secret = tmp_path / "of-the-group"
    secret.write_text("s3cret")
    ended = subprocess.run(
        [sys.executable, "-c", SESSION, str(GROUP), str(level), LOOK, str(secret)],
        cwd=ROOT,
        extra_groups=[GROUP],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    groups, read = ended.stdout.split("\n")[:2]
    assert str(GROUP) not in groups
    assert "s3cret" not in read
