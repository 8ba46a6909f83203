"""The launcher's options: flags over plain environment names over the YAML's section `launch` over defaults.

What is given is used, what is not given is started here. The plain names (`MODEL`, `ENGINE_URLS`, ...) are those of
`PLAIN_NAMES`; `TANDEM_LAUNCH_<FIELD>` works too, as for every service.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import CliPositionalArg, NoDecode

from shared.config import ServiceConfig, read_policies, read_section, read_sections
from shared.store import check_run_name
from shared.task_mix import TasksConfig

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path("assets/example")

PLAIN_NAMES = (
    *("DB_CONNECTION_STRING", "MCP_MANAGER_URL", "ENGINE_URLS", "ENGINE", "MODEL", "TRAIN_FILE", "EVAL_FILE", "CONFIG"),
    "EVAL_GENERATIONS",
    *("NUM_MACHINES", "MACHINE_RANK", "MASTER_ADDR", "MASTER_PORT", "NUM_PROCESSES", "NUM_SAMPLERS"),
)

GUIDE = Path(__file__).with_name("guide.txt")  # the scripts print it too, where .venv does not exist yet


class LaunchConfig(ServiceConfig):
    section: ClassVar[str] = "launch"
    program: ClassVar[str] = "scripts.launch"

    run: CliPositionalArg[str] = Field(description="Run name: the database, output/RUN and logs/RUN_*.log.")

    # what is used when given, and started here when not
    db_connection_string: str | None = Field(
        None,
        description="MongoDB to use. None: an embedded one, its data in output/RUN/mongodb.",
        json_schema_extra={"secret": True},
    )
    mcp_manager_url: str | None = Field(None, description="MCP endpoint with the tools. None: the bundled tool server.")
    engine_urls: Annotated[list[str], NoDecode] = Field(
        [], description="SGLang servers, comma separated; one keeper each. Empty: one engine is started here."
    )
    engine: Literal["local", "sglang"] = Field(
        "local",
        description="Which engine is started: the local CPU engine, or the real SGLang on a CPU (scripts/sglang_cpu.sh, "
        "which installs it once, 2.8 GB).",
    )

    # what is trained
    model: Path = Field(EXAMPLE / "model", description="Hugging Face directory with the weights to start from.")
    train_file: Path = Field(EXAMPLE / "train.jsonl", description="Tasks to train on, JSONL.")
    eval_file: Annotated[list[Path], NoDecode] = Field(
        [EXAMPLE / "eval.jsonl"],
        description="Held-out tasks, files separated by commas; played before and after training, and during it with the "
        "trainer's `eval_steps`.",
    )
    only_evaluate: bool = Field(False, description="Start no trainer: play the held-out tasks and report.")
    payload_model: str | None = Field(
        None, description="Pydantic model that every task's metadata must fit, as module:Class. None: no check."
    )
    policy: str = Field(
        "main", description="Name of the policy; of several (docs/two_policies.md), whose the tasks are."
    )
    num_generations: int = Field(8, gt=0, description="Episodes per training task (the group).")
    eval_generations: int = Field(1, gt=0, description="Episodes per eval task.")
    train_epochs: int = Field(1, gt=0, description="How often the training file is queued.")

    # how many of what
    num_samplers: int = Field(2, ge=0, description="Sampler processes on this machine.")
    num_processes: int = Field(0, ge=0, description="Trainer processes on this machine. 0: one per GPU, or one on CPU.")
    num_machines: int = Field(1, gt=0, description="Machines that train together.")
    machine_rank: int = Field(0, ge=0, description="This machine's number, from 0.")
    master_addr: str | None = Field(None, description="Address of machine 0, for the trainers to meet.")
    master_port: int | None = Field(None, gt=0, lt=65536, description="Port on machine 0, for the trainers to meet.")
    accelerate_config: Path = Field(Path("assets/fsdp2.yml"), description="Settings of `accelerate launch`.")

    # patience
    start_timeout_s: float = Field(180.0, gt=0, description="How long a service may take to come up.")

    @classmethod
    def load(cls, argv: Sequence[str] | None = None) -> Self:
        """Read everything. The plain environment names stand in where `TANDEM_LAUNCH_<FIELD>` is not set."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        if {"-h", "--help"} & set(arguments):
            sys.stdout.write(GUIDE.read_text(encoding="utf-8") + "\n")
        given = {f"TANDEM_LAUNCH_{name}": value for name in PLAIN_NAMES if (value := os.environ.get(name))}
        added = given.keys() - os.environ.keys()
        os.environ.update({name: given[name] for name in added})
        try:
            return super().load(arguments)
        finally:
            for name in added:
                del os.environ[name]

    @field_validator("engine_urls", "eval_file", mode="before")
    @classmethod
    def lists_are_separated_by_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @field_validator("run")
    @classmethod
    def run_is_a_database_name(cls, value: str) -> str:
        check_run_name(value)
        return value

    @model_validator(mode="after")
    def several_machines_share_what_each_cannot_start(self) -> "LaunchConfig":
        if self.machine_rank >= self.num_machines:
            raise ValueError(
                f"MACHINE_RANK is {self.machine_rank}; expected 0 to {self.num_machines - 1} (NUM_MACHINES={self.num_machines})"
            )
        if self.num_machines > 1:
            needed: dict[str, object] = {"DB_CONNECTION_STRING": self.db_connection_string}
            if not self.only_evaluate:
                needed |= {"MASTER_ADDR": self.master_addr, "MASTER_PORT": self.master_port}
            if missing := [name for name, value in needed.items() if not value]:
                raise ValueError(f"NUM_MACHINES is {self.num_machines}, so {', '.join(missing)} must be given")
        return self

    @model_validator(mode="after")
    def engine_is_either_running_or_started(self) -> "LaunchConfig":
        if self.engine_urls and "engine" in self.model_fields_set:
            raise ValueError("ENGINE and ENGINE_URLS exclude each other: start an engine here, or use those that run")
        return self

    @model_validator(mode="after")
    def files_exist(self) -> "LaunchConfig":
        files = [("train_file", self.train_file), ("accelerate_config", self.accelerate_config)]
        for name, given in [*files, *(("eval_file", path) for path in self.eval_file)]:
            if not (path := ROOT / given).is_file():
                raise ValueError(f"{name.upper()} is {path}, which is no file")
        if not (ROOT / self.model / "config.json").is_file():
            raise ValueError(
                f"MODEL is {ROOT / self.model}; expected a local Hugging Face directory (with config.json)"
            )
        return self

    @model_validator(mode="after")
    def tasks_come_from_files_or_from_sources(self) -> "LaunchConfig":
        mix = self.mix()
        for name, split in (("train_file", "train"), ("eval_file", "eval")):
            if mix is not None and name in self.model_fields_set and mix.of_split(split):
                raise ValueError(f"{name.upper()} and the sources of split {split} in {self.config} exclude each other")
        return self

    def mix(self) -> TasksConfig | None:
        """The YAML's section `tasks`, if it has one. Raises ConfigError."""
        if self.config is None or not read_section(ROOT / self.config, TasksConfig):
            return None
        return TasksConfig.load(["--config", str(ROOT / self.config)])

    def max_steps(self) -> int | None:
        """The trainer's `max_steps` where environment or YAML say it. Its own defaults need torch to be read."""
        if given := os.environ.get("TANDEM_TRAINER_MAX_STEPS"):
            return int(given)
        if self.config is None:
            return None
        shared, own = read_sections(ROOT / self.config), read_policies(ROOT / self.config).get(self.policy, {})
        given = {**(shared.get("trainer") or {}), **(own.get("trainer") or {})}.get("max_steps")
        return None if given is None else int(given)

    def own_sections(self) -> dict[str, dict[str, Any]]:
        """{policy: what the YAML's `policies` gives it of its own}; {}: the run has one policy. Raises ConfigError."""
        return {} if self.config is None else read_policies(ROOT / self.config)

    @property
    def is_main(self) -> bool:
        return self.machine_rank == 0

    @property
    def folder(self) -> Path:
        return ROOT / "output" / self.run

    @property
    def policy_folder(self) -> Path:
        """Checkpoints, versions, metrics: in the run's folder, or, of several policies, where a trainer puts them by itself."""
        return self.folder / self.policy if self.own_sections() and self.policy != "main" else self.folder

    @property
    def trainer_port(self) -> int | None:
        """Where this policy's trainers meet on machine 0: each policy's at the next port."""
        own = list(self.own_sections())
        return None if self.master_port is None else self.master_port + (own.index(self.policy) if own else 0)

    def part(self, kind: str, number: int) -> str:
        """What a policy's engine or trainer is called, here and as a log: trainer_0, or trainer_judge_0 of several."""
        return f"{kind}_{self.policy}_{number}" if self.own_sections() else f"{kind}_{number}"

    def log_path(self, part: str) -> Path:
        return ROOT / "logs" / f"{self.run}_{part}.log"

    @property
    def processes_here(self) -> int:
        return self.num_processes or max(1, count_gpus())


def count_gpus() -> int:
    """NVIDIA GPUs that this process may use, without loading torch."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len([p for p in Path("/dev").glob("nvidia*") if p.name.removeprefix("nvidia").isdigit()])
