"""The keeper's configuration: `python -m sampler.engine.keeper --help` prints it."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sampler.core.settings.engine_access import EngineAccess
from sampler.engine.keeper.local_engine import SIZES, LocalEngineConfig
from shared.configuration.loading import LogLevel, ServiceConfig
from shared.configuration.secrets import secret_field
from shared.documents.states import ServiceStatus
from shared.files.hub import ModelFolder
from shared.http.metrics_page import DESCRIPTION, Address
from shared.names import DEFAULT_POLICY, PolicyName, RunName

LOOPBACK = "127.0.0.1"


# 31 fields: settings: each is a flag and a key
class KeeperConfig(ServiceConfig):
    """Runs one engine: registers it, reports its load, keeps it on the wanted version of a policy."""

    section: ClassVar[str] = "keeper"
    program: ClassVar[str] = "python -m sampler.engine.keeper"
    about: ClassVar[str] = (
        "Looks after one inference engine of a run: starts it, gives it the published weights, registers "
        "it for samplers."
    )
    usage: ClassVar[str] = (
        "--run RUN --model_name_or_path DIR --engine_url URL|--engine_command '...' [--setting value ...]"
    )
    example: ClassVar[str] = (
        "tandem keeper --run my_run --model_name_or_path Qwen/Qwen3-4B --engine_url http://gpu3:30000"
    )
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "run",
            "db_connection_string",
            "config",
            "policy",
            "model_name_or_path",
            "engine_url",
            "engine_command",
            "engine_port",
            "engine_api_key_var",
            "weight_update_mode",
            "adapters",
            "weight_transport",
            "serve_version",
            "follow_every",
            "shared_device",
            "max_restarts",
            "start_timeout_s",
            "log_level",
        ),
    )

    run: RunName = Field(description="Name of the run, and of its database.")
    db_connection_string: str = secret_field(description="Connection string of the MongoDB server.")
    policy: PolicyName = Field(DEFAULT_POLICY, description="The policy whose weights the engine serves.")
    model_name_or_path: ModelFolder = Field(
        description="Hugging Face directory of version 0, the run's initial weights, or a model's name on the Hub."
    )
    engine_url: str | None = Field(
        None, description="URL of a running engine with SGLang's API, on any host. None: start one here."
    )
    engine_command: str | None = Field(
        None,
        description="Command to start an engine here, with placeholders {model} and {port}, {host} if samplers are elsewhere, "
        "and {api_key} if it requires one, such as 'python -m sglang.launch_server --model-path {model} --port {port}'. "
        "None: the local CPU engine.",
    )
    engine_host: str = Field(
        LOOPBACK,
        pattern=r"^[\w.:\[\]-]+$",
        description="Address at which the started engine listens, and by which samplers reach it: for samplers on other machines "
        "this machine's own.",
    )
    engine_port: int = Field(0, ge=0, le=65535, description="Port of the started engine; 0: a free one.")
    capacity: int = Field(0, ge=0, description="Maximum requests that it runs at once; 0: as the engine reports.")
    weight_update_mode: Literal["retract", "abort", "drain"] = Field(
        "retract",
        description="Requests in flight at an update: keep and recompute their cache (retract); cut them, for the sampler to "
        "continue (abort); or wait for them, so that each reply has one version (drain).",
    )
    follow_every: int = Field(
        1,
        gt=0,
        description="Versions from one update to the next. Above 1 the engine lags on purpose: samplers use it only for the "
        'turns of the source "lagging" in their turn_sources.',
    )
    serve_version: int | None = Field(
        None,
        ge=0,
        description="Serve this version alone, also while newer ones appear: for actors that are pinned to it "
        "(docs/bring/actors.md). None: follow the newest.",
    )
    adapters: Literal["merged", "engine"] = Field(
        "merged",
        description="How versions that are published as adapters (publish_mode: adapter) are served: merged into the weights "
        "(merged); or loaded by the engine, SGLang or vLLM with --enable-lora, under a name that requests give (engine). Then "
        "nothing is paused, a reply has one version, and keepers of several policies or runs may share one engine_url.",
    )
    weight_transport: Literal["auto", "broadcast", "disk", "peers"] = Field(
        "auto",
        description="How it gets weights: always from disk; by a broadcast that the trainer offers, else from disk; in chunks "
        "from the trainer's machine and from other keepers, which it serves at engine_host in turn (peers). auto: by a broadcast "
        "that is offered, else from disk, and by peers where the trainer serves weights and this machine does not see its disk.",
    )
    shared_device: str | None = Field(
        None,
        min_length=1,
        description="Name of a device that the engine shares with a trainer of the same setting: it releases its memory while "
        "that one computes a step (docs/run/gpus.md). None: it has its own.",
    )
    cache_dir: Path | None = Field(
        None,
        description="Folder where weights published as changes or adapters are merged; the engine must see it under this path. "
        "None: a folder in the system's temporary directory that only this user can read.",
    )
    drain_s: float = Field(600.0, ge=0, description="Mode drain: requests still running after this time are retracted.")
    poll_s: float = Field(
        0.25,
        gt=0,
        description="Shortest interval of queries for the wanted version. A signal triggers one; without signals the interval "
        "grows to 10 s.",
    )
    heartbeat_s: float = Field(
        1.0,
        gt=0,
        description="Interval at which the engine's load is read; it is stored when it has changed, else every 2 s, or every "
        "5 s while the engine is idle.",
    )
    max_restarts: int = Field(
        5,
        ge=0,
        description="Maximum restarts of an engine started here that exited, also during its start.",
    )
    start_timeout_s: float = Field(600.0, gt=0, description="Time-out for a starting engine to answer.")
    metrics_address: Address | None = Field(None, description=DESCRIPTION)
    log_level: LogLevel = Field("INFO", description="Lowest severity that is logged.")

    engines: EngineAccess = EngineAccess()
    local: LocalEngineConfig = LocalEngineConfig()

    @model_validator(mode="after")
    def engine_is_either_running_or_started(self) -> "KeeperConfig":
        if self.engine_command is None:
            return self
        if self.engine_url:
            raise ValueError(
                "engine_url and engine_command exclude each other: use a running engine, or start one here"
            )
        missing = [place for place in ("{model}", "{port}") if place not in self.engine_command]
        if missing:
            raise ValueError(f"engine_command {self.engine_command!r} lacks the placeholder {' and '.join(missing)}")
        if self.engine_host != LOOPBACK and "{host}" not in self.engine_command:
            raise ValueError(
                f"engine_host is {self.engine_host}, and engine_command {self.engine_command!r} lacks the placeholder {{host}}: "
                "the engine would not listen there"
            )
        if "{api_key}" in self.engine_command and self.engines.engine_api_key_var is None:
            raise ValueError(
                "engine_command has the placeholder {api_key}; expected engine_api_key_var to name the key's variable"
            )
        return self

    @model_validator(mode="after")
    def sizes_are_of_the_local_engine(self) -> "KeeperConfig":
        sizes = [name for name in SIZES if getattr(self.local, name) is not None]
        if sizes and (self.engine_url or self.engine_command):
            other = "engine_url" if self.engine_url else "engine_command"
            raise ValueError(f"{sizes[0]} is for the local engine, and {other} is set; expected one of them")
        return self

    @model_validator(mode="after")
    def an_engine_that_shares_is_started_here(self) -> "KeeperConfig":
        if self.shared_device is not None and self.engine_url:
            raise ValueError(
                "shared_device needs an engine that the keeper starts (engine_command): of a running one it cannot know "
                "whether it sleeps"
            )
        return self

    @model_validator(mode="after")
    def adapters_are_of_an_engine_that_never_sleeps(self) -> "KeeperConfig":
        if self.adapters == "engine" and self.shared_device is not None:
            raise ValueError(
                "adapters is engine, and shared_device is set: an engine that slept has no weights, and loads its base "
                "only when it starts; expected one of them"
            )
        return self

    @model_validator(mode="after")
    def an_engine_follows_or_serves_one_version(self) -> "KeeperConfig":
        if self.serve_version is not None and self.follow_every > 1:
            raise ValueError(
                f"serve_version is {self.serve_version} and follow_every {self.follow_every}; expected one of them: an engine "
                "of one version follows none"
            )
        return self

    @property
    def joins_broadcasts(self) -> bool:
        """An engine that sleeps while its trainer publishes cannot receive."""
        follows = self.follow_every == 1 and self.serve_version is None
        whole = self.weight_transport in ("auto", "broadcast") and self.adapters == "merged"
        return whole and follows and self.shared_device is None

    @property
    def status_of_update(self) -> ServiceStatus:
        """DRAINING until the engine serves the new weights: a reply that began before the pause would mix two versions."""
        return ServiceStatus.DRAINING if self.weight_update_mode == "drain" else ServiceStatus.UPDATING
