"""The launcher's options of the environments that its samplers play: docs/bring/environments.md."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from sampler.environments.config import EnvironmentsConfig
from shared.configuration.loading import ServiceConfig, read_section
from shared.errors import ConfigError
from tandem.launch.comma_lists import CommaList
from tandem.launch.places import ROOT


class SamplerSettings(ServiceConfig):
    """The samplers of this machine, and the service of environments that is started for them."""

    num_samplers: int = Field(2, ge=0, description="Sampler processes on this machine.")
    environments: CommaList = Field(
        [],
        description="Environments that a service here serves to the samplers, separated by commas: gymnasium:FrozenLake-v1,"
        "reasoning_gym:leg_counting (docs/bring/environments.md). Empty: those of the YAML's section `environments`, which holds "
        "the service's other settings too; without either no service is started.",
    )
    environment_python: Path | None = Field(
        None,
        description="Python of that service's workers, in which the environments' packages are installed, such as "
        ".games/venv/bin/python. None: the section's worker_python, else this one.",
    )

    @model_validator(mode="after")
    def the_environments_can_be_served(self) -> Self:
        flags = self.environment_flags()
        if self.environment_python and not flags:
            raise ValueError("environment_python is given without environments: no service of environments is started")
        try:
            if flags:
                EnvironmentsConfig.load(flags)
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc
        return self

    def environment_flags(self) -> list[str]:
        """Of the service of environments; [] where none is started. Raises ConfigError."""
        section = {} if self.config is None else read_section(ROOT / self.config, EnvironmentsConfig)
        if not self.num_samplers or not (self.environments or section.get("environments")):
            return []
        flags = ["--config", str(ROOT / self.config)] if self.config else []
        flags += ["--environments", ",".join(self.environments)] if self.environments else []
        flags += ["--worker_python", str(ROOT / self.environment_python)] if self.environment_python else []
        return flags if "port" in section else [*flags, "--port", "0"]
