"""Serve agents that run elsewhere: they claim tasks over HTTP, and their requests are recorded and trained.

python -m sampler.gateway --run RUN --db_connection_string URI --model_name_or_path DIR        # http://127.0.0.1:9800
TANDEM_SAMPLER_GATEWAY_TOKEN=… python -m sampler.gateway … --gateway_host 0.0.0.0

Start any number of them; each continues every attempt. Any may be stopped or killed at any time. Guide: docs/bring/any_agent.md.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

from sampler.core.service.serve import serve
from sampler.gateway.service import run_gateway
from sampler.settings import GatewayConfig


def main() -> None:
    serve(GatewayConfig.load_or_exit(), run_gateway)


if __name__ == "__main__":
    run_command(main)
