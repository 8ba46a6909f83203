"""Supervised fine-tuning: `python -m trainer.sft --help` explains its settings."""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

from collections.abc import Sequence

from trainer.process.ending import Ending, end_process
from trainer.sft.config import SftConfig


def main(argv: Sequence[str] | None = None) -> None:
    with Ending():
        config = SftConfig.load_or_exit(argv)
        from trainer.sft.training import run  # torch takes seconds: not for --help, nor for a wrong setting

        run(config)


if __name__ == "__main__":
    run_command(main)
    end_process(0)
