"""Where the launcher works, and where what comes with it lies: in a checkout, or installed.

checkout    relative paths, output/ and logs/ start at its root; assets/ is a folder of it
installed   they start in the current folder; assets/ is a folder of the package `tandem`
"""

import sys
from pathlib import Path

from shared.processes.run_module import command

_PACKAGE = Path(__file__).resolve().parents[1]
IS_CHECKOUT = (_PACKAGE.parents[1] / "scripts" / "minirl_example.sh").is_file()
ROOT = _PACKAGE.parents[1] if IS_CHECKOUT else Path.cwd()
ASSETS = Path("assets") if IS_CHECKOUT else _PACKAGE / "assets"
EXAMPLE = ASSETS / "example"
TANDEM = ".venv/bin/tandem" if IS_CHECKOUT else "tandem"  # as a person starts it


def module_command(module: str) -> list[str]:
    """The command line that runs a program of ours. Installed, the current folder is the user's: its packages are not ours."""
    return [sys.executable, "-m", module] if IS_CHECKOUT else command(module)


def as_shown(path: Path) -> str:
    """A path as people read it."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
