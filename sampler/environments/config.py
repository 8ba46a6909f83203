"""Settings of `python -m sampler.environments`: `--help` prints them."""

import os
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from shared.configuration.loading import LogLevel, ServiceConfig
from shared.configuration.secrets import secret_field
from shared.documents.run import HEARTBEAT_S
from shared.http.metrics_page import DESCRIPTION, Address
from shared.names import RunName, is_loopback_host

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
DEFAULT_PORT = 5020  # of AgentRL's controller


# 27 fields: settings: each is a flag and a key
class EnvironmentsConfig(ServiceConfig):
    """Serves sessions of environments in worker processes, by AgentRL's controller protocol, at http://HOST:PORT/api."""

    section: ClassVar[str] = "environments"
    program: ClassVar[str] = "python -m sampler.environments"
    about: ClassVar[str] = "Serves environments to samplers, in worker processes of a Python that has their packages."
    usage: ClassVar[str] = "--environments [NAME=]PROVIDER:WORLD,... [--run RUN] [--setting value ...]"
    example: ClassVar[str] = (
        "tandem environments --run my_run --environments lake=gymnasium:FrozenLake-v1 --worker_python "
        "/venvs/games/bin/python"
    )
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "environments",
            "run",
            "db_connection_string",
            "config",
            "worker_python",
            "workers",
            "capacity",
            "host",
            "port",
            "url",
            "token_file",
            "start_s",
            "step_s",
            "lease_s",
            "log_level",
        ),
    )
    takes_database_variable: ClassVar[bool] = True

    environments: list[str] = Field(
        min_length=1,
        description="What it serves: gymnasium:FrozenLake-v1, reasoning_gym:leg_counting, textarena:TowerOfHanoi-v0, "
        "database:train, shell:train, my_pkg.worlds:Maze or FILE.py:Maze; NAME=… gives it a name that tasks say instead.",
    )
    run: RunName | None = Field(
        None, description="The run in which it registers, so that samplers find it. None: it is found by its URL alone."
    )
    db_connection_string: str | None = secret_field(
        None, description="Connection string of the run's MongoDB server. Needed with run."
    )
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0: every one, which needs a token.")
    port: int = Field(
        DEFAULT_PORT, ge=0, le=65535, description="Port to listen on; 0: a free one, printed on the first line."
    )
    url: str | None = Field(
        None,
        description="Base URL at which samplers reach it, such as http://node7:5020/api. None: this machine's name and the port, "
        "or the loopback address where it listens on that.",
    )
    token: str | None = secret_field(None, description="Bearer token that every request must carry. None: no token.")
    token_file: Path | None = Field(None, description="File with the bearer token, such as a Docker secret.")

    # workers
    workers: Count | None = Field(None, description="Worker processes. None: one per core.")
    worker_python: Path | None = Field(
        None,
        description="Python of the workers, such as /venvs/games/bin/python where the environments' packages are installed; "
        "it needs nothing of Tandem's. None: this one.",
    )
    capacity: Count = Field(
        1000,
        description="Sessions at once over all workers; above it, a new one is refused as busy (HTTP 406), and samplers wait. "
        "With as many workers as capacity each session has a process of its own.",
    )
    max_starting: Count = Field(
        128, description="Sessions that start at once; further ones wait for wait_s, and are then refused as busy."
    )
    wait_s: Seconds = Field(20.0, description="How long a start waits for its turn.")
    start_s: Seconds = Field(120.0, description="Time-out of a start; then its worker is ended and replaced.")
    step_s: Seconds = Field(
        60.0,
        description="Time-out of a step, which includes the steps before it in the same worker; then its worker is ended.",
    )
    lease_s: Seconds = Field(300.0, description="A session without a request for this long is ended.")
    drain_s: float = Field(30.0, ge=0, description="At SIGTERM: time for open sessions to end.")
    heartbeat_s: Seconds = Field(HEARTBEAT_S, description="Interval of its heartbeats in the run.")
    metrics_address: Address | None = Field(None, description=DESCRIPTION)
    log_level: LogLevel = Field("INFO", description="Lowest severity that is logged.")

    @property
    def kinds(self) -> dict[str, str]:
        """{name: what provides it}."""
        return dict(named(one) for one in self.environments)

    @property
    def num_workers(self) -> int:
        return min(self.workers or os.cpu_count() or 1, self.capacity)

    @field_validator("environments")
    @classmethod
    def each_environment_has_a_provider_and_a_name_of_its_own(cls, given: list[str]) -> list[str]:
        seen: set[str] = set()
        for one in given:
            name, provider = named(one)
            if not name or not provider.partition(":")[2]:
                raise ValueError(f"{one!r} is no environment; expected ADAPTER:NAME, module:Class or NAME=ADAPTER:NAME")
            if name in seen:
                raise ValueError(
                    f"{name!r} is given twice; expected each environment once, or under another name: NAME=…"
                )
            seen.add(name)
        return given

    @model_validator(mode="after")
    def a_run_is_in_a_database(self) -> Self:
        if self.run is not None and self.db_connection_string is None:
            raise ValueError("run is set without a connection string; expected DB_CONNECTION_STRING in the environment")
        return self

    @model_validator(mode="after")
    def other_machines_need_a_token(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given; expected one of them")
        if not is_loopback_host(self.host) and self.token is None and self.token_file is None:
            raise ValueError(
                f"host is {self.host!r} without a token; expected token_file or TANDEM_ENVIRONMENTS_TOKEN, or 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def the_workers_python_is_a_program(self) -> Self:
        if self.worker_python is not None and not os.access(self.worker_python, os.X_OK):
            raise ValueError(f"worker_python is {self.worker_python}, which is no program; expected a Python's path")
        return self


def named(environment: str) -> tuple[str, str]:
    """(name, what provides it)."""
    name, equals, provider = environment.partition("=")
    return (name.strip(), provider.strip()) if equals else (environment.strip(), environment.strip())
