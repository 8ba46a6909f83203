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


def forgotten(root: Path) -> list[str]:
    """Sources and settings of this checkout that no commit will have: git neither tracks nor ignores them."""
    asked = [
        "git",
        "ls-files",
        "--others",
        "--exclude-standard",
        "--",
        "*.py",
        "*.sh",
        "*.yml",
        "*.yaml",
        "*.json",
        "*.md",
    ]
    done = subprocess.run(asked, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip("no checkout of git here")
    return done.stdout.splitlines()


def test_no_source_is_forgotten_in_a_commit() -> None:
    """Where a file was never added, all tests pass in this checkout, and a clone of the commit does not start."""
    assert forgotten(ROOT) == [], "git add these, or delete them"


def test_a_file_that_was_not_added_is_seen(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    (tmp_path / ".gitignore").write_text("/output/\n")
    for name in ("output/a.py", "package/added.py", "package/forgotten.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    subprocess.run(["git", "add", ".gitignore", "package/added.py"], cwd=tmp_path, check=True, timeout=60)
    assert forgotten(tmp_path) == ["package/forgotten.py"]


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


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """A virtual environment with the wheel as pip unpacks it; the packages that it depends on are links to this Python's."""
    folder = built / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], timeout=120, check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (path,) = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(packages)
    for one in Path(pytest.__file__).parents[1].iterdir():
        if one.suffix != ".pth" and not one.name.startswith(("__editable__", "tandem_rl", "__pycache__")):
            (packages / one.name).symlink_to(one)
    program = folder / "bin" / "tandem"  # as pip writes it
    program.write_text(f"#!{folder}/bin/python\nimport sys\nfrom tandem import main\nsys.exit(main())\n")
    program.chmod(0o755)
    return program


def run(program: Path, folder: Path, *words: str, limit_s: float = 120) -> str:
    folder.mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "PYTHON", "DB_"))}
    done = subprocess.run(
        [str(program), *words], cwd=folder, env=clean, capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert str(ROOT) not in done.stdout
    return done.stdout


def test_the_launcher_of_the_wheel_plans_in_the_current_folder(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(ROOT / "assets" / "example" / "model", folder / "my_model")
    shutil.copy(ROOT / "assets" / "example" / "train.jsonl", folder / "my_tasks.jsonl")
    (folder / "sampler").mkdir()  # a package of the user's own, of our name
    (folder / "sampler" / "__init__.py").write_text("raise SystemExit('of the user')\n")
    words = ("--model", "my_model", "--tasks", "my_tasks.jsonl", "--tools", "http://127.0.0.1:9/mcp", "--dry-run")
    planned = run(installed, folder, "run", "mine", *words)
    assert "--model_name_or_path my_model" in planned
    assert "--mcp_manager_url http://127.0.0.1:9/mcp" in planned
    assert "log logs/mine_sample_0.log" in planned
    for name in ("sampler", "trainer"):
        assert run(installed, folder, name, "--help").startswith("usage: ")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_demo_of_the_wheel_trains_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    told = run(installed, folder, "demo", "--max_steps", "1", limit_s=500)
    assert (folder / "output" / "demo" / "summary.json").is_file()
    assert "    tandem view demo" in told
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "output"]
    for log in (folder / "logs").iterdir():
        assert str(ROOT / "sampler") not in log.read_text(encoding="utf-8")
