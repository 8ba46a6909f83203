"""A nursery of trainers: python -m tests.trainer.training_child MODEL_DIR

Every line on standard input, {"run", "db", "output_dir"}, forks one process that trains that run from its data to the end. It
says each thing that it begins on standard output, as "PID PHASE"; its end is "PID ended STATUS", which an empty line answers.
Forking spares each trainer the seconds that importing torch takes; a forked one shares nothing else with those before it.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.checkpoints.checkpoint import Checkpoints
from trainer.data.prefetch import Prefetch
from trainer.data.stream import RecordStream
from trainer.loop import train
from trainer.publishing.publish import Publisher
from trainer.settings.config import TrainerConfig
from trainer.step.learner import Learner

MAX_STEPS, GROUPS_PER_STEP, SAVE_STEPS = 12, 2, 2
PHASES: dict[str, tuple[type, str]] = {
    "load": (RecordStream, "next_batch"),
    "prefetch": (Prefetch, "fill"),
    "step": (Learner, "step_in_minibatches"),
    "commit": (RecordStream, "commit"),
    "checkpoint": (Checkpoints, "save"),
    "publish": (Publisher, "publish"),
}


def announce(phase: str, owner: type, name: str) -> None:
    """The method says when it begins; what it does stays as it is."""
    method: Callable[..., Any] = getattr(owner, name)

    def said(*args: Any, **kwargs: Any) -> Any:
        say(phase)
        return method(*args, **kwargs)

    setattr(owner, name, said)


def say(what: str) -> None:
    os.write(1, f"{os.getpid()} {what}\n".encode())


def config_of(order: dict[str, str], model_directory: Path) -> TrainerConfig:
    return TrainerConfig(
        run=order["run"],
        db_connection_string=order["db"],
        output_dir=Path(order["output_dir"]),
        model_name_or_path=model_directory,
        groups_per_step=GROUPS_PER_STEP,
        max_steps=MAX_STEPS,
        max_staleness=10_000,
        learning_rate=1e-3,
        save_steps=SAVE_STEPS,
        keep_versions=2,
        max_tokens_per_row=64,
        report_to=["none"],
        device="cpu",
        num_threads=1,
    )


def main() -> None:
    for phase, (owner, name) in PHASES.items():
        announce(phase, owner, name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            train(config_of(json.loads(line), Path(sys.argv[1])))
            os._exit(0)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie, whose pid no other process gets
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.write(1, f"{pid} ended {status}\n".encode())
        sys.stdin.readline()  # no test kills it from here on
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
