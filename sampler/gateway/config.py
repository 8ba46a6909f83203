"""Settings for episodes that a foreign agent plays. Guide: docs/any_agent.md. They are fields of the sampler's configuration."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


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
