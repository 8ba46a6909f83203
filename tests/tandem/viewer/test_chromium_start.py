"""How Chromium starts and fails."""

import os
from pathlib import Path

import pytest

from scripts.chromium import NAMES, browser, chromium_path


@pytest.mark.skipif(chromium_path() is None, reason="no Chromium: scripts/setup_browser.sh installs it")
async def test_a_folder_for_temporary_files_with_a_long_path_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    async with browser() as page:
        assert await page.run("1 + 1") == 2


async def test_what_chromium_wrote_is_in_the_error_when_it_ends_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / NAMES[0]
    program.write_text("#!/bin/sh\necho no display is here >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(RuntimeError, match="status 3 before it listened; it wrote: no display is here"):
        async with browser():
            pytest.fail("there is no page")
