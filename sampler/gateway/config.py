"""Settings for episodes that a foreign agent plays: fields of the sampler's configuration. Guide: docs/bring/any_agent.md."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from sampler.core.settings.core_config import CoreConfig
from shared.configuration.effect import require_effect
from shared.configuration.secrets import secret_field
from shared.configuration.sections import Section
from shared.rules.episodes import AgentRules
from shared.sandbox.launch import ContainerOptions
from shared.sandbox.limit_settings import Count, LimitSettings

_CONTAINER = ContainerOptions()


class AgentLimits(LimitSettings, frozen=True, extra="forbid"):
    """Limits of an isolated command, with all its descendants. Its time is episode_timeout_s."""

    memory_mb: Count = Field(2048, description="Memory.")
    processes: Count = Field(256, description="Processes and threads of an episode.")
    open_files: Count = Field(1024, description="Open files of one process.")


class AgentContainer(BaseModel, frozen=True, extra="forbid"):
    """The containers of agent_isolation: container."""

    image: str = Field(_CONTAINER.image, description="Image of the command's programs; it is not pulled.")
    runtime: str = Field(_CONTAINER.runtime, description="Runtime of the engine. Empty: the engine's default.")
    cpus: float = Field(_CONTAINER.cpus, gt=0, description="Processor cores of one container.")


class IsolationSettings(Section):
    """The sandbox of agent_command. Optional."""

    switch: ClassVar = ("agent_isolation", "none")

    agent_isolation: Literal["process", "bubblewrap", "container"] = Field(
        description="Run agent_command in MCP-Docker's sandbox of this level: it can write only its own folder, reads only what "
        "it needs, and agent_limits end it. In place of tool_user and tool_sandbox. See docs/bring/any_agent.md.",
    )
    agent_limits: AgentLimits = Field(
        AgentLimits(),
        description="Limits of an isolated command with all its processes: cpu_s, memory_mb, processes, open_files, file_mb, "
        "folder_mb, output_mb. One that is exceeded ends the attempt.",
    )
    agent_readable: list[Path] = Field(
        [],
        description="Files and folders that an isolated command may read, besides the system's, Python's, and the files (with "
        "their virtual environments) that agent_command names by whole paths.",
    )
    agent_network: Literal["machine", "gateway"] = Field(
        "machine",
        description="What an isolated command reaches: the machine's network, or the gateway alone (needs bubblewrap).",
    )
    agent_container: AgentContainer = Field(
        AgentContainer(), description="For agent_isolation: container: image, runtime, cpus."
    )

    @model_validator(mode="after")
    def settings_of_a_container_have_one(self) -> Self:
        require_effect(self, self.agent_isolation == "container", "agent_isolation = container", "agent_container")
        return self

    @model_validator(mode="after")
    def the_gateway_alone_is_reached_from_a_sandbox_of_bubblewrap(self) -> Self:
        if self.agent_network == "gateway" and self.agent_isolation != "bubblewrap":
            raise ValueError(
                f"agent_network is 'gateway' at agent_isolation = {self.agent_isolation}; expected bubblewrap"
            )
        return self


class CommandSettings(Section):
    """A command that plays episodes. Optional."""

    switch: ClassVar = ("agent_command", None)

    agent_command: str = Field(
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
    isolation: IsolationSettings | None = None

    @model_validator(mode="after")
    def what_is_preloaded_runs_outside_of_a_sandbox(self) -> Self:
        if self.agent_preload and self.isolation is not None:
            raise ValueError(
                f"agent_preload and agent_isolation = {self.isolation.agent_isolation} are both set, and a fork runs outside of "
                "the sandbox; leave out one of them"
            )
        return self


class AgentSettings(AgentRules):
    """Foreign agents: what plays, and what its requests may say."""

    agent: str | None = Field(
        None,
        description="An async function that plays an episode through the gateway, as module:function or FILE.py:function. It "
        "returns an answer, a score or nothing.",
    )
    agent_parameters: Literal["override", "refuse"] = Field(
        "override",
        description="If a request of an agent has a member that changes nothing here (temperature, top_p, a forced tool, seed, "
        "cache_control, …, at any depth): count it by its path and answer without it, or refuse the request.",
    )
    agent_answers: bool = Field(
        False,
        description="Give agents the task's answer too: at /claim, and in the task file of agent_command. For those that score "
        "themselves; where the model's tools can read that file, it can read the answer.",
    )
    command: CommandSettings | None = None

    @model_validator(mode="after")
    def an_agent_is_a_function_or_a_command(self) -> Self:
        if self.agent is not None and self.command is not None:
            raise ValueError("agent and agent_command are both set; expected one of them")
        return self

    @property
    def isolation(self) -> IsolationSettings | None:
        return None if self.command is None else self.command.isolation


class GatewaySettings(Section):
    """Where agents send their requests, and the attempts that harnesses claim."""

    gateway_host: str = Field("127.0.0.1", description="Address on which the gateway listens for agents.")
    gateway_port: int = Field(
        9800, ge=0, le=65535, description="Port of python -m sampler.gateway; 0: a free one, printed on the first line."
    )
    gateway_max_connections_per_address: int | None = Field(
        None,
        gt=0,
        description="Maximum open connections of one IP address to python -m sampler.gateway, such as a proxy's. None: a quarter "
        "of the limit of open files, at most 5,000; 127.0.0.1 and ::1 have no such bound.",
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


class AgentPlayConfig(CoreConfig):
    """The core's settings, with those of foreign agents."""

    agents: AgentSettings = AgentSettings()
    gateway: GatewaySettings = GatewaySettings()

    @model_validator(mode="after")
    def commands_reach_the_gateway_on_loopback_alone(self) -> Self:
        isolation, host = self.agents.isolation, self.gateway.gateway_host
        if isolation is not None and isolation.agent_network == "gateway" and not host.startswith("127."):
            raise ValueError(
                f"gateway_host is {host} with agent_network = gateway, where commands reach it on loopback alone; "
                "expected 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def what_is_preloaded_is_for_a_command_outside_of_a_sandbox(self) -> Self:
        command = self.agents.command
        if command is not None and command.agent_preload and self.tools.tool_sandbox != "off":
            raise ValueError(
                f"agent_preload and tool_sandbox = {self.tools.tool_sandbox} are both set, and a fork runs outside of the "
                "sandbox; leave out one of them"
            )
        return self
