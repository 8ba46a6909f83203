"""What a launch needs before it starts anything: enough open files, and the real SGLang where it is chosen."""

import subprocess
from collections.abc import Sequence

from scripts.launch import commands
from scripts.launch.settings import LaunchConfig
from shared.errors import TandemError
from shared.processes.open_files import FEWEST, FEWEST_OF_DATABASE, require_files


def prepare(policies: Sequence[LaunchConfig]) -> None:
    """Raises ConfigError for too few open files, TandemError where SGLang cannot be installed."""
    require_files(FEWEST if policies[0].db_connection_string else FEWEST_OF_DATABASE)
    if any(policy.engine == "sglang" and policy.starts_engine and not policy.placed for policy in policies):
        _install_sglang()


def _install_sglang() -> None:
    """Install before anything is started, since the first time takes minutes; prints progress to the terminal."""
    if status := subprocess.run(commands.install_sglang(), stdin=subprocess.DEVNULL, check=False).returncode:
        raise TandemError(f"SGLang could not be installed (status {status}, see above); without it: --engine local")
