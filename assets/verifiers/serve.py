"""Serves an environment of verifiers over its own protocol: `python serve.py tandem_sums tcp://127.0.0.1:5000 [WORKERS]`.

Its chat program runs in this Python, which has what it needs, and not in one that uv makes from PyPI.
"""

import hashlib
import sys
from pathlib import Path

from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import SubprocessRuntime
from verifiers.v1.serve import serve_env


def without_uv() -> None:
    program = CHAT_PROGRAM_SOURCE.encode()
    path = Path(SubprocessRuntime.scripts_dir) / f"{hashlib.sha256(program).hexdigest()}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(program)
    SubprocessRuntime._interpreters[str(path)] = sys.executable


if __name__ == "__main__":
    name, address, *workers = sys.argv[1:]
    without_uv()
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    serve_env(
        max_workers=int(workers[0]) if workers else 1,
        address=address,
        config_data={"taskset": {"id": name}, "agent": agent},
    )
