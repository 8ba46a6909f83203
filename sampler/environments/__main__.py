"""Serve environments to samplers, in worker processes, by AgentRL's controller protocol.

python -m sampler.environments --run RUN --environments gymnasium:FrozenLake-v1,reasoning_gym:leg_counting
python -m sampler.environments --environments lake=gymnasium:FrozenLake-v1 --worker_python /venvs/games/bin/python
TANDEM_ENVIRONMENTS_TOKEN=… python -m sampler.environments --run RUN --environments my_worlds.py:Maze --host 0.0.0.0

Samplers of the run find it by themselves; tasks name an environment as metadata.environment. Guide: docs/bring/environments.md.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

from sampler.core.service.serve import serve
from sampler.environments.config import EnvironmentsConfig
from sampler.environments.serving import run_environments


def main() -> None:
    serve(EnvironmentsConfig.load_or_exit(), run_environments)


if __name__ == "__main__":
    run_command(main)
