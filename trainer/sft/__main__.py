"""Supervised fine-tuning: `python -m trainer.sft --help` explains its settings."""

from shared.processes.interrupt import run_command
from trainer.parallel import end_process
from trainer.sft.training import main

if __name__ == "__main__":
    run_command(main)
    end_process(0)
