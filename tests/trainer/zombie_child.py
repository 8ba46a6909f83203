"""A nursery of trainers that stop themselves: python -m tests.trainer.zombie_child MODEL_DIR

Every line on standard input, {"run", "db", "output_dir", "async_checkpoints", "stop_at", "nth"}, forks one process that trains
that run. At the `nth` of a checkpoint's writes called `stop_at` (`WRITES`), before it does it, it says "PID stopped" and stops
itself by SIGSTOP. "PID ended STATUS" is its end. Several may be alive at once.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.configuration.sections import flat_values
from tests.trainer.training_child import config_of, say
from trainer.checkpoints import atomic_directories, checkpoint
from trainer.data.stream import RecordStream
from trainer.loop import train
from trainer.settings.config import TrainerConfig

WRITES: dict[str, tuple[Any, str]] = {
    "begin": (RecordStream, "next_batch"),
    "mkdtemp": (checkpoint, "temporary_directory"),
    "tensors": (checkpoint.dcp, "async_save"),
    "question": (checkpoint.Checkpoints, "_publish"),
    "flush": (atomic_directories, "_fsync"),
    "name": (os, "rename"),
}


def stop_at(write: str, nth: int) -> None:
    """Count from the first checkpoint on; "begin" from the start."""
    begins = checkpoint.temporary_directory
    counted = 0 if write == "begin" else None

    def stopping(method: Callable[..., Any]) -> Callable[..., Any]:
        def stops(*args: Any, **kwargs: Any) -> Any:
            nonlocal counted
            if counted is not None:
                counted += 1
            if counted == nth:
                say("stopped")
                os.kill(os.getpid(), signal.SIGSTOP)
            return method(*args, **kwargs)

        return stops

    def beginning(*args: Any) -> Path:
        nonlocal counted
        counted = counted or 0
        return begins(*args)

    checkpoint.temporary_directory = beginning
    owner, name = WRITES[write]
    setattr(owner, name, stopping(getattr(owner, name)))
    if write == "mkdtemp":
        counted = 0


def wait_for(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    say_of(pid, f"ended {os.waitstatus_to_exitcode(status)}")


def say_of(pid: int, what: str) -> None:
    os.write(1, f"{pid} {what}\n".encode())


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            if order["stop_at"]:
                stop_at(order["stop_at"], order["nth"])
            try:
                own = {"max_steps": 4, "keep_checkpoints": 9, "async_checkpoints": order["async_checkpoints"]}
                given = flat_values(config_of(order, Path(sys.argv[1])))
                train(TrainerConfig.model_validate(given | own))
            except BaseException as exc:  # noqa: BLE001  # the parent asks how it ended
                os.write(2, f"{os.getpid()} {type(exc).__name__}: {exc}\n".encode())
                os._exit(1)
            os._exit(0)
        threading.Thread(target=wait_for, args=(pid,), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
