"""Play a run's episodes until stopped.

python -m sampler --run RUN --db_connection_string URI --model_name_or_path DIR --mcp_manager_url URL

Start any number of samplers, on any machine that reaches the database, the engines and the tools. Any of them may be stopped
or killed at any time.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

from sampler.core.service.serve import serve
from sampler.core.service.service import run_service
from sampler.settings import SamplerConfig


def main() -> None:
    serve(SamplerConfig.load_or_exit(), run_service)


if __name__ == "__main__":
    run_command(main)
