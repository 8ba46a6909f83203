"""MCP-Docker's settings: `python -m sampler.mcp_docker --help` prints them."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from shared.configuration.loading import LogLevel, ServiceConfig
from shared.configuration.secrets import secret_field
from shared.configuration.sections import Section
from shared.names import is_loopback_host
from shared.sandbox import ContainerOptions, Limits
from shared.sandbox.limit_settings import LimitSettings, Seconds

_DEFAULTS = Limits()
_CONTAINER = ContainerOptions()
Level = Literal["process", "bubblewrap", "container"]
Megabytes = Annotated[int, Field(gt=0, le=1024)]


class ToolLimitSettings(LimitSettings, Section):
    """Limits of every tool server's processes, with all their descendants."""

    lifetime_s: Seconds = Field(_DEFAULTS.lifetime_s, description="Time from the start of the processes.")


class ContainerSettings(Section):
    """The containers of isolation level `container`."""

    container_image: str = Field(
        _CONTAINER.image, description="Image of the tool servers' programs; it is not pulled, so it must be there."
    )
    container_runtime: str = Field(
        _CONTAINER.runtime, description="Runtime of the engine, such as runsc (gVisor). Empty: the engine's default."
    )
    container_cpus: float = Field(_CONTAINER.cpus, gt=0, description="Processor cores of one container.")


# 32 fields: settings: each is a flag and a key
class McpDockerConfig(ServiceConfig):
    """Serves the tool servers of an mcpServers JSON at http://HOST:PORT/mcp. Every session has tool processes of its own."""

    section: ClassVar[str] = "mcp"
    program: ClassVar[str] = "python -m sampler.mcp_docker"
    about: ClassVar[str] = "Serves tools at one MCP address, each session with tool processes of its own."
    example: ClassVar[str] = "tandem mcp-docker --servers mcp_docker.json --isolation process --port 9700"
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "servers",
            "config",
            "host",
            "port",
            "token",
            "token_file",
            "max_sessions",
            "warm_sessions",
            "isolation",
            "readable",
            "network_servers",
            "memory_mb",
            "processes",
            "lifetime_s",
            "container_image",
            "call_s",
            "lease_s",
            "max_calls_per_s",
            "state_folder",
            "log_level",
        ),
    )

    servers: Path = Field(
        description='The tool servers: a JSON file {"mcpServers": {NAME: {"command": …} or {"url": …}}} as for Claude Desktop.'
    )
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0: every one, which needs a token.")
    port: int = Field(9700, ge=0, le=65535, description="Port to listen on; 0: a free one, printed on the first line.")
    token: str | None = secret_field(None, description="Bearer token that every request must carry. None: no token.")
    token_file: Path | None = Field(None, description="File with the bearer token, such as a Docker secret.")
    allowed_origins: list[str] = Field(
        [], description="Origins of web pages that may send requests, such as https://inspector.example.org. [*]: all."
    )
    state_folder: Path | None = Field(
        None, description="Folder of the sessions' private folders. None: one per port below the temporary folder."
    )

    # sessions
    max_sessions: int = Field(
        1000, gt=0, description="Maximum open sessions; above it, a new one is refused as busy (HTTP 503, Retry-After)."
    )
    warm_sessions: int = Field(2, ge=0, description="Sets of tool processes that are started before a session asks.")
    max_starting: int | None = Field(
        None, gt=0, description="Maximum sets of tool processes that start at the same time. None: two per core."
    )
    start_s: Seconds = Field(60.0, description="Maximum time for a set of tool processes to start.")
    wait_s: Seconds = Field(20.0, description="How long a new session waits for its set before it is refused as busy.")
    lease_s: Seconds = Field(
        600.0, description="A session without a request or an open connection for this long is ended."
    )
    broken_s: Seconds = Field(
        60.0,
        description="The same, after a connection broke off while it waited for an answer or listened (not at 2026-07-28), "
        "or if nothing followed.",
    )
    drain_s: float = Field(20.0, ge=0, description="At SIGTERM: how long calls in flight may take to end.")

    # requests
    call_s: Seconds = Field(3600.0, description="Maximum time of one request to a tool server, even with progress.")
    max_message_mb: Megabytes = Field(
        16, description="Maximum size of a request's body, and of one message of a tool server."
    )
    max_parallel_calls: int = Field(32, gt=0, description="Maximum requests of one session in flight; above: HTTP 429.")
    max_calls_per_s: int = Field(
        200,
        gt=0,
        description="Maximum requests per second of one session, on average over ten seconds; above: HTTP 429.",
    )
    max_connections: int = Field(
        10_000,
        gt=0,
        description="Maximum open connections of all clients, at most half the limit of open files. Above it, a connection that "
        "waits for its client is closed in favour of a new one; if all wait for answers: HTTP 503, except for /health.",
    )
    max_connections_per_address: int | None = Field(
        None,
        gt=0,
        description="The same of one IP address, such as a proxy's. None: half of max_connections; 127.0.0.1 and ::1 have no "
        "such bound.",
    )

    # isolation
    isolation: Level | None = Field(
        None, description="Isolation of tool processes. None: bubblewrap, or process where bubblewrap does not work."
    )
    limits: ToolLimitSettings = ToolLimitSettings()
    container: ContainerSettings = ContainerSettings()
    readable: list[Path] = Field(
        [], description="Folders that tools may read, besides the system's and Python's: their programs and data."
    )
    network_servers: list[str] = Field([], description="Names of servers whose processes may use the network.")
    log_level: LogLevel = Field("INFO", description="Least severe level that is logged.")

    @model_validator(mode="after")
    def only_one_token_is_given(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given; expected one of them")
        return self

    @model_validator(mode="after")
    def other_machines_need_a_token(self) -> Self:
        if not is_loopback_host(self.host) and self.token is None and self.token_file is None:
            raise ValueError(
                f"host is {self.host!r} without a token; expected token_file or TANDEM_MCP_TOKEN, or 127.0.0.1"
            )
        return self

    @property
    def sandbox_limits(self) -> Limits:
        return Limits(**self.limits.model_dump())

    @property
    def container_options(self) -> ContainerOptions:
        given = self.container
        return ContainerOptions(given.container_image, given.container_runtime, given.container_cpus)
