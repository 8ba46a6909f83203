"""A nursery of processes that save checkpoints without a pause: python -m tests.trainer.saving_child ROOT MODEL_DIR

For every line on standard input it forks one child, says its pid, and waits for its end: forking spares each of them the
seconds that importing torch takes. A child continues from the latest checkpoint and saves after every step, for ever.
"""

import os
import sys
from pathlib import Path

from tests.trainer.launched import exact_learner
from trainer.checkpoints import checkpoint, folders, restore
from trainer.process.parallel import parallel_session


def save_for_ever(root: Path, model_directory: Path) -> None:
    with parallel_session("cpu", num_threads=1) as parallel:
        learner = exact_learner(model_directory, parallel)
        if path := folders.latest(root):
            resumed = restore.load(learner, path, parallel)
            assert resumed.accounting == {"records": resumed.step * 3}, f"{path}: {resumed}"
        checkpoints = checkpoint.Checkpoints(root, parallel, asynchronous=True)
        while True:
            learner.steps_done += 1
            checkpoints.save(learner, {"records": learner.steps_done * 3})


def main() -> None:
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            save_for_ever(Path(sys.argv[1]), Path(sys.argv[2]))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
