"""What is built for others to install has the files that its programs and its documentation name."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = (
    "constraints.txt",
    "assets/fsdp2.yml",
    "assets/minirl.yml",
    "deploy/docker-compose.yml",
    "docs/reference/settings.md",
    "CHANGELOG.md",
)

pytestmark = pytest.mark.slow


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip("no checkout of git here")
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, as a clone has them, and `dist` with both distributions."""
    folder = tmp_path_factory.mktemp("distribution")
    for name in tracked():
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "clone" / name, follow_symlinks=False)
    program = (
        "import sys; from setuptools import build_meta as b; to = sys.argv[1]; b.build_sdist(to); b.build_wheel(to)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "dist")],
        cwd=folder / "clone",
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_the_source_distribution_has_every_file_of_the_checkout_but_those_of_its_host(built: Path) -> None:
    (path,) = (built / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(NAMED) <= names
    hidden = {name for name in tracked() if name.startswith(".")}
    assert set(tracked()) - names == hidden, "those that begin with a dot"


def test_the_wheel_runs_in_an_empty_folder_with_its_launch_settings(built: Path, tmp_path: Path) -> None:
    """Installed as pip does it, by unpacking; the packages that it depends on are this Python's."""
    (path,) = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        assert archive.read("trainer/fsdp2.yml") == (ROOT / "assets" / "fsdp2.yml").read_bytes()
        assert not [name for name in archive.namelist() if name.startswith(("scripts/", "tests/", "assets/"))]
        archive.extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
        "from tandem.commands.programs import launched; import shared\n"
        "print(shared.__file__); print(launched('trainer', ['--run', 'r'])[4])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path / "empty", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    ours, settings = done.stdout.splitlines()
    assert ours == str(tmp_path / "installed" / "shared" / "__init__.py")
    assert settings == str(tmp_path / "installed" / "trainer" / "fsdp2.yml")
    assert Path(settings).is_file()
