"""Supervised fine-tuning: `python -m trainer.sft --help` explains its settings."""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

from trainer.process.parallel import end_process
from trainer.sft.training import main

if __name__ == "__main__":
    run_command(main)
    end_process(0)
