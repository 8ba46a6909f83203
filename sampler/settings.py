"""The sampler's configuration, with the settings of its tenants: `python -m sampler --help` prints it."""

from typing import ClassVar

from sampler.environments.play_config import EnvironmentPlayConfig, EnvironmentSettings
from sampler.gateway.config import AgentPlayConfig


class SamplerConfig(AgentPlayConfig, EnvironmentPlayConfig):
    """The sampler's settings."""

    section: ClassVar[str] = "sampler"
    program: ClassVar[str] = "python -m sampler"
    about: ClassVar[str] = (
        "Plays a run's episodes until it is stopped: claims tasks, asks engines for turns, calls tools, "
        "scores, and settles groups. Start any number, anywhere."
    )
    usage: ClassVar[str] = "--run RUN --model_name_or_path DIR [--config FILE.yml] [--setting value ...]"
    example: ClassVar[str] = (
        "tandem sampler --run my_run --config my.yml --model_name_or_path Qwen/Qwen3-4B --mcp_manager_url"
        " http://tools:9700/mcp"
    )
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "run",
            "db_connection_string",
            "config",
            "model_name_or_path",
            "mcp_manager_url",
            "scorer_modules",
            "default_scorer",
            "sampler",
            "agent",
            "agent_command",
            "max_turns",
            "max_new_tokens",
            "max_tokens",
            "temperature",
            "tool_call_parser",
            "system_prompt",
            "answer_instruction",
            "chat_template_kwargs",
            "advantage",
            "new_context",
            "environment_controllers",
            "actors",
            "agent_config_path",
            "max_concurrent_episodes",
            "episode_timeout_s",
            "tool_timeout_s",
            "log_level",
        ),
    )
    tenants: ClassVar[tuple[str, ...]] = (
        "sampler.bundled_scorers.tenant",
        "sampler.actors.tenant",
        "sampler.environments.tenant",
        "sampler.gateway.tenant",
    )

    environments: EnvironmentSettings = EnvironmentSettings()


class GatewayConfig(SamplerConfig):
    """The sampler's settings; those of playing episodes (`sampler`, `agent`, concurrency) are not used."""

    program: ClassVar[str] = "python -m sampler.gateway"
    about: ClassVar[str] = (
        "Serves agents that run elsewhere: they claim tasks over HTTP, and their requests are recorded "
        "and trained. Start any number; each continues every attempt."
    )
    example: ClassVar[str] = (
        "tandem gateway --run my_run --config my.yml --model_name_or_path Qwen/Qwen3-4B --gateway_token_file token"
    )
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "run",
            "db_connection_string",
            "config",
            "model_name_or_path",
            "gateway_host",
            "gateway_port",
            "gateway_url",
            "gateway_token",
            "gateway_token_file",
            "gateway_max_connections_per_address",
            "attempt_idle_s",
            "agent_parameters",
            "agent_output_format",
            "agent_head_lines",
            "agent_crash",
            "agent_answers",
            "default_scorer",
            "scorer_modules",
            "max_new_tokens",
            "max_tokens",
            "temperature",
            "tool_call_parser",
            "advantage",
            "max_concurrent_episodes",
            "log_level",
        ),
    )
