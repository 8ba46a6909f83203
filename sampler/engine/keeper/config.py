"""The keeper's configuration: `python -m sampler.engine.keeper --help` prints it."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sampler.engine.client.access import EngineAccess
from shared.configuration.loading import LogLevel, ServiceConfig, secret_field
from shared.files.hub import ModelFolder
from shared.names import DEFAULT_POLICY, PolicyName, RunName


class KeeperConfig(ServiceConfig, EngineAccess):
    """Looks after one engine: registers it, reports on it, keeps it on the version of a policy that is wanted."""

    section: ClassVar[str] = "keeper"
    program: ClassVar[str] = "python -m sampler.engine.keeper"

    run: RunName = Field(description="Run name: the database.")
    db_connection_string: str = secret_field(description="MongoDB to use.")
    policy: PolicyName = Field(DEFAULT_POLICY, description="Which policy's weights the engine serves.")
    model_name_or_path: ModelFolder = Field(
        description="Hugging Face directory of version 0, the weights the run starts from, or a name of the Hub."
    )
    engine_url: str | None = Field(
        None, description="A running SGLang-compatible engine, also on another host. None: start one here."
    )
    engine_command: str | None = Field(
        None,
        description="What starts an engine here, with the places {model} and {port} (and {api_key}, if it shall demand one), "
        "such as 'python -m sglang.launch_server --model-path {model} --port {port}'. None: the local CPU engine.",
    )
    engine_port: int = Field(0, ge=0, le=65535, description="Port of the engine that is started; 0: a free one.")
    capacity: int = Field(0, ge=0, description="Requests it may run at once; 0: as the engine says.")
    weight_update_mode: Literal["retract", "abort", "drain"] = Field(
        "retract",
        description="Requests in flight at an update: kept, their cache computed anew (retract); cut, and continued by the "
        "sampler (abort); or waited for, so that each reply is of one version (drain).",
    )
    follow_every: int = Field(
        1,
        gt=0,
        description="Versions from one update to the next. Above 1 the engine lags on purpose: samplers ask it only for the "
        'turns that their turn_sources give to "lagging".',
    )
    weight_transport: Literal["broadcast", "disk"] = Field(
        "broadcast",
        description="Whether it joins where a trainer offers new weights over the network, or loads from disk in any case.",
    )
    cache_dir: Path | None = Field(
        None,
        description="Where weights that were published as changes or adapters are put together; the engine must see it under "
        "this path. None: a folder in the system's temporary one that this user alone can read.",
    )
    drain_s: float = Field(600.0, ge=0, description="Mode drain: requests that take longer are retracted.")
    poll_s: float = Field(0.25, gt=0, description="How often the wanted version is looked for.")
    heartbeat_s: float = Field(1.0, gt=0, description="How often the engine's load is read and written.")
    max_restarts: int = Field(
        5,
        ge=0,
        description="How often an engine that was started here and died is started again, also while it starts.",
    )
    start_timeout_s: float = Field(120.0, gt=0, description="Until a starting engine answers.")
    log_level: LogLevel = Field("INFO", description="From which severity on messages are logged.")

    @model_validator(mode="after")
    def engine_is_either_running_or_started(self) -> "KeeperConfig":
        if self.engine_command is None:
            return self
        if self.engine_url:
            raise ValueError(
                "engine_url and engine_command exclude each other: use the engine there, or start one here"
            )
        if missing := [place for place in ("{model}", "{port}") if place not in self.engine_command]:
            raise ValueError(f"engine_command {self.engine_command!r} lacks the place {' and '.join(missing)}")
        if "{api_key}" in self.engine_command and self.engine_api_key_var is None:
            raise ValueError(
                "engine_command has the place {api_key}; expected engine_api_key_var to say where the key is"
            )
        return self

    @property
    def joins_broadcasts(self) -> bool:
        return self.weight_transport == "broadcast" and self.follow_every == 1
