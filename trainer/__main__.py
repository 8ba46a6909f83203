"""Train a policy from a run's database until `max_steps`.

accelerate launch --config_file assets/fsdp2.yml -m trainer --run RUN --db_connection_string URI --model_name_or_path DIR

It can be started and stopped at any time: it continues from its last checkpoint, with that checkpoint's data accounting.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

import os

from shared.logs import begin_logging
from shared.open_files import require_files
from trainer.process.ending import Ending, end_process
from trainer.settings.config import TrainerConfig


def main() -> None:
    with Ending():
        config = TrainerConfig.load_or_exit()
        begin_logging(config.log_level, f"rank={os.environ.get('RANK', '0')} ")
        require_files()
        from trainer.loop import train  # torch takes seconds: not for --help, nor for a wrong setting

        train(config)
    end_process(0)


if __name__ == "__main__":
    run_command(main)
