"""Serve tool servers at one address, with tool processes of their own for every session.

python -m sampler.mcp_docker --servers mcp_servers.json                        # http://127.0.0.1:9700/mcp
TANDEM_MCP_TOKEN=… python -m sampler.mcp_docker --servers mcp_servers.json --host 0.0.0.0

Samplers get its URL: `--mcp_manager_url http://HOST:9700/mcp`, and the token as MCP_BEARER_TOKEN.
Guide: docs/bring/mcp_docker.md.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

import asyncio
import logging
import sys

import uvloop

from sampler.mcp_docker.config import McpDockerConfig
from sampler.mcp_docker.serving import run_gateway
from shared.errors import ConfigError
from shared.logs import begin_logging
from shared.open_files import require_files
from shared.processes.concealment import conceal

SETTING_REFUSED = 2  # exit status: a setting is wrong


def main() -> None:
    config = McpDockerConfig.load_or_exit()
    conceal(config.secrets())
    begin_logging(config.log_level)
    try:
        require_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_gateway(config))
    except ConfigError as exc:
        logging.getLogger("mcp_docker").error("%s", exc)
        sys.exit(SETTING_REFUSED)


if __name__ == "__main__":
    run_command(main)
