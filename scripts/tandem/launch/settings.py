"""The launcher's options: flags over plain environment names over the YAML's section `launch` over defaults.

Pass what you have; the rest is started locally. The plain names (`MODEL`, `ENGINE_URLS`, ...) are those of
`PLAIN_NAMES`; `TANDEM_LAUNCH_<FIELD>` works too, as for every service.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic_settings import CliPositionalArg, NoDecode

from shared.configuration.help_text import print_help
from shared.configuration.loading import (
    read_policies,
    read_section,
)
from shared.configuration.secrets import DATABASE_VARIABLE, configured_secret, secret_field
from shared.configuration.sections import flattened, spellings
from shared.configuration.sources import EMPTY
from shared.configuration.typed_values import home_path
from shared.files.hub import ModelFolder
from shared.names import DEFAULT_POLICY, EVAL_SPLIT, TRAIN_SPLIT, PolicyName, RunName
from shared.tasks.files import NUM_GENERATIONS
from shared.tasks.mix import TasksConfig
from tandem.launch.comma_lists import parts_of
from tandem.launch.environments import SamplerSettings
from tandem.launch.launched_engines import LaunchedEngines
from tandem.launch.nodes import Derived, NodeSettings, derived, own_address
from tandem.launch.placement import PlacedSettings
from tandem.launch.places import ASSETS, EXAMPLE, ROOT
from tandem.launch.service_flags import ServiceFlags, hand_out, split_arguments
from tandem.launch.trainer_settings import GivenSettings

PLAIN_NAMES = (
    *("DB_CONNECTION_STRING", "MCP_MANAGER_URL", "ENGINE_URLS", "ENGINE", "ENGINE_FLAGS", "MODEL", "CONFIG"),
    *("TRAIN_FILE", "EVAL_FILE", "EVAL_GENERATIONS", "ENVIRONMENTS", "ENVIRONMENT_PYTHON"),
    *("NUM_MACHINES", "MACHINE_RANK", "MASTER_ADDR", "MASTER_PORT", "NUM_PROCESSES", "NUM_SAMPLERS"),
    *("JOIN", "NODE_ADDR", "NODE_NAME"),
)

BUNDLED = "bundled"  # mcp_manager_url: the example's own tool server
SAME = {
    "--model_name_or_path": "--model",
    "--eval_files": "--eval_file",
    "--tasks": "--train_file",
    "--tools": "--mcp_manager_url",
}

GUIDE = Path(__file__).with_name("guide.txt")  # the scripts print it too if .venv does not exist yet


def _own_name(word: str) -> str:
    """The launcher's name for an option that services and other systems name differently."""
    flag, equals, value = word.partition("=")
    if flag == "--dry-run" and not equals:
        return "--dry_run=true"
    return SAME.get(flag, flag) + equals + value


# 25 methods and 29 fields: settings: each is a flag and a key; most methods check or derive one
class LaunchConfig(SamplerSettings, LaunchedEngines, PlacedSettings):
    section: ClassVar[str] = "launch"
    program: ClassVar[str] = "tandem run"
    about: ClassVar[str] = (
        "Runs everything on this machine, to the end. Pass what you have; the rest is started: an "
        "embedded MongoDB, the bundled tools, the local CPU engine, two samplers and the trainer, on the "
        "bundled model and tasks. The same name again continues the run; Ctrl-C stops it cleanly. Every "
        "setting of a service is a flag here too, and a setting below a variable in capitals (MODEL, "
        "TRAIN_FILE)."
    )
    usage: ClassVar[str] = "RUN_NAME [--config FILE.yml] [--setting value ...]"
    example: ClassVar[str] = (
        "tandem run my_run --model Qwen/Qwen3-4B --train_file tasks.jsonl --mcp_manager_url http://tools:9700/mcp"
    )
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "db_connection_string",
            "mcp_manager_url",
            "engine_urls",
            "engine",
            "model",
            "train_file",
            "eval_file",
            "config",
            "method",
            "num_generations",
            "eval_generations",
            "num_samplers",
            "num_processes",
            "environments",
            "environment_python",
            "gpus",
            "num_machines",
            "join",
            "only_evaluate",
            "dry_run",
        ),
    )
    help_topics: ClassVar[Mapping[str, str]] = {"guide": GUIDE.read_text(encoding="utf-8")}
    _service_flags: ServiceFlags = PrivateAttr(default_factory=dict)
    _derived: Derived = PrivateAttr(default_factory=Derived)

    run: CliPositionalArg[RunName] = Field(description="Run name: the database, output/RUN and logs/RUN_*.log.")

    # used if given, else started here
    db_connection_string: str | None = secret_field(
        None, description="MongoDB to use. None: an embedded one with its data in output/RUN/mongodb."
    )
    mcp_manager_url: str | None = Field(
        None,
        description="MCP endpoint of the tools, or `bundled`: the example's tool server. None: `bundled` for the bundled tasks, "
        "no tools for your own tasks.",
    )

    # model, tasks and method
    method: Literal["minirl", "grpo", "eval"] | None = Field(
        None,
        description="Settings without `config`: assets/example/METHOD.yml for the bundled model, assets/METHOD.yml for "
        "your own. None: the services' defaults.",
    )
    model: ModelFolder = Field(
        EXAMPLE / "model",
        description="Hugging Face directory with the weights to start from, or a name of the Hub: Qwen/Qwen3-4B.",
    )
    train_file: Path = Field(EXAMPLE / "train.jsonl", description="Tasks to train on, JSONL.")
    eval_file: Annotated[list[Path] | None, NoDecode, BeforeValidator(parts_of)] = Field(
        None,
        description="Held-out tasks, files separated by commas; played before and after training, and during training with "
        "`eval_steps`. Empty: no evaluation. None: the bundled ones for the bundled tasks, no evaluation for your own.",
        json_schema_extra={EMPTY: "no evaluation"},
    )
    only_evaluate: bool = Field(
        False, description="Only evaluate: play the held-out tasks and report, without a trainer."
    )
    payload_model: str | None = Field(
        None, description="Pydantic model that every task's metadata must fit, as module:Class. None: no check."
    )
    policy: PolicyName = Field(
        DEFAULT_POLICY,
        description="Name of the policy; of several (docs/train/two_policies.md), the owner of the tasks.",
    )
    frozen: bool = Field(
        False, description="This policy, one of several, keeps its initial weights: it gets no trainer."
    )
    num_generations: int = Field(NUM_GENERATIONS, gt=0, description="Episodes per training task (the group).")
    eval_generations: int = Field(1, gt=0, description="Episodes per eval task.")
    train_epochs: int = Field(1, gt=0, description="Epochs: how often the training file is queued.")

    # numbers of processes
    num_processes: int = Field(0, ge=0, description="Trainer processes on this machine. 0: one per GPU, or one on CPU.")
    accelerate_config: Path = Field(ASSETS / "fsdp2.yml", description="Settings of `accelerate launch`.")

    # time limits
    start_timeout_s: float = Field(
        600.0,
        gt=0,
        description="Time limit for the start of a service. The first start of vLLM and SGLang compiles kernels.",
    )

    log_folder: Path = Field(Path("logs"), description="Folder of the logs, RUN_PART.log each.")

    dry_run: bool = Field(False, description="Print what would be started on this machine, and start nothing.")
    machines: NodeSettings = NodeSettings()

    @classmethod
    def load(cls, argv: Sequence[str] | None = None) -> Self:
        """Read all sources. Plain environment names are the fallback for `TANDEM_LAUNCH_<FIELD>`."""
        arguments = [_own_name(word) for word in (sys.argv[1:] if argv is None else argv)]
        print_help(cls, arguments)
        given = {f"TANDEM_LAUNCH_{name}": value for name in PLAIN_NAMES if (value := os.environ.get(name)) is not None}
        database = configured_secret(DATABASE_VARIABLE)
        if database is not None:
            given[f"TANDEM_LAUNCH_{DATABASE_VARIABLE}"] = database
        added = {name for name in given.keys() - os.environ.keys() if given[name] or name == "TANDEM_LAUNCH_EVAL_FILE"}
        os.environ.update({name: given[name] for name in added})
        try:
            own, others = split_arguments(arguments, spellings(cls))
            own += cls._default_config(own)
            place = cls._derived_place(own)
            config = super().load([*own, *(f"--{name}={value}" for name, value in place.values.items())])
            config._derived = place
            context = [f"--config={config.config}"] if config.config else []
            context += [f"--policy={config.policy}"]
            config._service_flags = hand_out(others, spellings(cls), context)
            return config
        finally:
            for name in added:
                del os.environ[name]

    @classmethod
    def _default_config(cls, arguments: list[str]) -> list[str]:
        """`--config` with the method's example settings, if a method and no configuration is given."""
        given = cls.given(arguments)
        if "method" not in given or "config" in given:
            return []
        folder = ASSETS if "model" in given else EXAMPLE
        return ["--config", str(folder / f"{given['method']}.yml")]

    @classmethod
    def _derived_place(cls, arguments: list[str]) -> Derived:
        """This machine's place by torchrun's or Slurm's variables, if nothing else says it."""
        given = flattened(cls, cls.given(arguments))
        section = flattened(cls, read_section(home_path(given["config"]), cls)) if given.get("config") else {}
        if {"num_machines", "machine_rank", "join"} & (given.keys() | section.keys()):
            return Derived()
        by_variables = derived(os.environ)
        if by_variables.source == "torchrun":  # MASTER_ADDR and MASTER_PORT in the environment are its own
            given = {word.removeprefix("--").partition("=")[0]: word for word in arguments}
        own = given.keys() | section.keys()
        return Derived(
            by_variables.source, {name: value for name, value in by_variables.values.items() if name not in own}
        )

    @model_validator(mode="after")
    def several_machines_share_what_each_cannot_start(self) -> "LaunchConfig":
        machines = self.machines
        if machines.machine_rank >= machines.num_machines:
            raise ValueError(
                f"MACHINE_RANK is {machines.machine_rank}; expected 0 to {machines.num_machines - 1} "
                f"(NUM_MACHINES={machines.num_machines})"
            )
        if machines.join and machines.num_machines > 1:
            raise ValueError(
                "JOIN and NUM_MACHINES exclude each other: a machine that joins is none of those that train"
            )
        if machines.num_machines > 1 or machines.join:
            needed: dict[str, object] = {"DB_CONNECTION_STRING": self.db_connection_string}
            if not (self.only_evaluate or machines.join):
                needed |= {"MASTER_ADDR": machines.master_addr, "MASTER_PORT": machines.master_port}
            missing = [name for name, value in needed.items() if not value]
            if missing:
                which = "JOIN is true" if machines.join else f"NUM_MACHINES is {machines.num_machines}"
                raise ValueError(f"{which}, so {', '.join(missing)} must be given")
        return self

    @model_validator(mode="after")
    def files_exist(self) -> "LaunchConfig":
        files = [("train_file", self.train_file), ("accelerate_config", self.accelerate_config)]
        for name, given in [*files, *(("eval_file", path) for path in self.eval_file or ())]:
            if not (path := ROOT / given).is_file():
                raise ValueError(f"{name.upper()} is {path}, which is not a file")
        if not (ROOT / self.model / "config.json").is_file():
            raise ValueError(
                f"MODEL is {ROOT / self.model}; expected a local Hugging Face directory (with config.json)"
            )
        return self

    @model_validator(mode="after")
    def tasks_come_from_files_or_from_sources(self) -> "LaunchConfig":
        mix = self.mix()
        for name, split in (("train_file", TRAIN_SPLIT), ("eval_file", EVAL_SPLIT)):
            if mix is not None and name in self.model_fields_set and mix.of_split(split):
                raise ValueError(f"{name.upper()} and the sources of split {split} in {self.config} exclude each other")
        return self

    @model_validator(mode="after")
    def the_trainers_steps_are_a_number(self) -> "LaunchConfig":
        self.trainer_settings.get("max_steps", int)
        return self

    @model_validator(mode="after")
    def an_evaluation_has_tasks(self) -> "LaunchConfig":
        if self.only_evaluate and not self.has_evaluation:
            raise ValueError("there is nothing to evaluate: EVAL_FILE is empty; expected held-out tasks, JSONL")
        return self

    @property
    def plays_bundled_tasks(self) -> bool:
        """Whether neither files nor sources of tasks are given; with `only_evaluate` only held-out ones count."""
        name = "eval_file" if self.only_evaluate else "train_file"
        return name not in self.model_fields_set and self.mix() is None

    @property
    def eval_files(self) -> list[Path]:
        """Files of held-out tasks; [] if they come from sources, or without evaluation."""
        if self.eval_file is not None:
            return self.eval_file
        return [EXAMPLE / "eval.jsonl"] if self.plays_bundled_tasks else []

    @property
    def has_evaluation(self) -> bool:
        mix = self.mix()
        return bool(self.eval_files) or (mix is not None and bool(mix.of_split(EVAL_SPLIT)))

    @property
    def tools(self) -> str | None:
        """URL of the tools; `BUNDLED`: the example's server, None: no tools."""
        return self.mcp_manager_url or (BUNDLED if self.plays_bundled_tasks else None)

    @property
    def service_flags(self) -> ServiceFlags:
        """The services' flags on the command line, by section."""
        return self._service_flags

    def mix(self) -> TasksConfig | None:
        """The YAML's section `tasks`, if any. Raises ConfigError."""
        if self.config is None or not read_section(ROOT / self.config, TasksConfig):
            return None
        return TasksConfig.load(["--config", str(ROOT / self.config)])

    @property
    def trainer_settings(self) -> GivenSettings:
        """What of the trainer's settings is given to this launch."""
        return GivenSettings(self.service_flags.get("trainer", ()), self.config, self.policy)

    def own_sections(self) -> dict[str, dict[str, Any]]:
        """{policy: its sections of the YAML's `policies`}; {}: the run has one policy. Raises ConfigError."""
        return {} if self.config is None else read_policies(ROOT / self.config)

    @property
    def derived(self) -> Derived:
        """What torchrun's or Slurm's variables said of this machine's place."""
        return self._derived

    @property
    def address(self) -> str:
        """The address at which this machine's engines listen and are announced."""
        return own_address(self.machines, self.db_connection_string)

    @property
    def trains(self) -> bool:
        """Whether this machine runs a trainer of this policy."""
        return not (self.only_evaluate or self.machines.join or self.frozen)

    @property
    def folder(self) -> Path:
        return ROOT / "output" / self.run

    @property
    def policy_folder(self) -> Path:
        """Folder of checkpoints, versions and metrics: the run's, or with several policies the trainer's default."""
        return self.folder / self.policy if self.own_sections() and self.policy != DEFAULT_POLICY else self.folder

    @property
    def trainer_port(self) -> int | None:
        """Rendezvous port of this policy's trainers on machine 0: consecutive ports for the policies."""
        own = list(self.own_sections())
        return (
            None
            if self.machines.master_port is None
            else self.machines.master_port + (own.index(self.policy) if own else 0)
        )

    def part(self, kind: str, number: int | str) -> str:
        """Name of a policy's engine or trainer, also of its log: trainer_0, or trainer_judge_0 with several policies."""
        return f"{kind}_{self.policy}_{number}" if self.own_sections() else f"{kind}_{number}"

    def log_path(self, part: str) -> Path:
        return ROOT / self.log_folder / f"{self.run}_{part}.log"

    @property
    def processes_here(self) -> int:
        return self.num_processes or max(1, len(self.placed.placement.trainer) if self.placed else 0)
