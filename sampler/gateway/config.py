"""Settings for episodes that a foreign agent plays. Guide: docs/any_agent.md. They are fields of the sampler's configuration."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from shared.configuration.secrets import secret_field


class AgentPlayConfig(BaseModel):
    """Settings of `sampler.gateway.agent_sampler:AgentSampler`."""

    agent: str | None = Field(
        None,
        description="An async function that plays an episode through the gateway, as module:function or FILE.py:function. It "
        "returns an answer, a score or nothing. For --sampler sampler.gateway.agent_sampler:AgentSampler.",
    )
    agent_command: str | None = Field(
        None,
        description="Instead of agent: a command that plays an episode, a child process with OPENAI_BASE_URL, OPENAI_API_KEY, "
        "ANTHROPIC_BASE_URL, GEMINI_API_KEY, …; {query}, {prompt} and {task_file} are replaced, and the prompt is its stdin.",
    )
    agent_preload: list[str] = Field(
        [],
        description="Modules that agent_command's Python script imports, such as langchain.agents,langchain_openai. They are "
        "loaded once per sampler, and each episode's process is a fork that has them: milliseconds instead of seconds.",
    )
    agent_folder: Path | None = Field(
        None,
        description="Folder that keeps each command's working directory, with its stdout and stderr, as RECORD. None: a "
        "temporary directory, deleted with the episode.",
    )
    agent_parameters: Literal["override", "refuse"] = Field(
        "override",
        description="If an agent sets parameters that change the distribution (temperature, top_p, tool_choice, stop, …): "
        "ignore and count them, or refuse the request.",
    )
    agent_head_lines: int = Field(
        0,
        ge=0,
        description="Lines at the beginning of an agent's system prompt that may differ between requests of one conversation "
        "(a date, a request's number); the conversation keeps those of its first request.",
    )
    gateway_host: str = Field("127.0.0.1", description="Address on which the gateway listens for agents.")
    gateway_port: int = Field(
        9800, ge=0, le=65535, description="Port of python -m sampler.gateway; 0: a free one, printed on the first line."
    )
    gateway_url: str | None = Field(
        None,
        description="URL at which agents reach python -m sampler.gateway, such as a load balancer's before several of them. "
        "None: this process's own address.",
    )
    gateway_token: str | None = secret_field(
        None, description="Bearer token of the harnesses that claim tasks. Needed on any address but loopback."
    )
    gateway_token_file: Path | None = Field(None, description="File with that token, such as a Docker secret.")
    attempt_idle_s: float = Field(
        600.0,
        gt=0,
        description="An attempt that was claimed from outside and has no request for this long counts as failed.",
    )
