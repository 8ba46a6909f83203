"""The options of `python -m scripts.deploy_check`, and those that other checks in containers have too."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from shared.configuration.loading import ServiceConfig
from shared.names import RunName

Count = Annotated[int, Field(gt=0)]


class ContainersConfig(ServiceConfig):
    """What every check in containers has."""

    build: bool = Field(True, description="Build the images first. False: those that are there.")
    keep: bool = Field(False, description="Leave containers and volumes for inspection. False: remove them at the end.")
    tls: bool = Field(False, description="With docker-compose.tls.yml: TLS to MongoDB, and of agents to the gateways.")
    step_timeout_s: Annotated[float, Field(gt=0)] = Field(600.0, description="Longest wait for any one thing.")


class DeployCheckConfig(ContainersConfig):
    """Builds images, brings all up, trains the demo while samplers come and go and containers are killed, audits the run."""

    section: ClassVar[str] = "deploy_check"
    program: ClassVar[str] = "python -m scripts.deploy_check"

    project: str = Field("tandem-check", description="Name of the Compose project, before its containers and volumes.")
    run: RunName = Field("demo", description="Name of the run.")
    max_steps: Count = Field(20, description="Optimizer steps of the demo.")
    samplers: Count = Field(2, description="Samplers at first, and after the scaling.")
    many_samplers: Count = Field(6, description="Samplers in the middle; then one.")
    kill: bool = Field(True, description="Kill every container once.")
    bare_metrics: Path | None = Field(
        None, description="metrics.jsonl of the same demo without containers, to compare the reward at the same steps."
    )
    report: Path | None = Field(None, description="File for the figures, JSON. None: they are only printed.")
