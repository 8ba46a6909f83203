"""Settings of every process that plays, lends out or settles episodes. Tenants add theirs in `sampler/settings.py`."""

from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import BaseModel, Field, field_validator, model_validator

from sampler.core.parsers import get_parser
from sampler.core.settings.engine_access import EngineAccess
from sampler.core.settings.groups import GroupSettings
from sampler.core.settings.queue import QueueSettings
from sampler.core.settings.tools import ToolSettings
from shared.configuration.loading import LogLevel, ServiceConfig
from shared.configuration.secrets import secret_field
from shared.files.hub import TokenizerFolder
from shared.http.metrics_page import DESCRIPTION, Address
from shared.names import DEFAULT_POLICY, PolicyName, RunName, SamplerName
from shared.rules.episodes import PromptRules, ScoringRules
from shared.rules.run_rules import RuleSettings, untrained
from shared.tasks.sampler_names import BUNDLED

Seconds = Annotated[float, Field(gt=0)]

PartT = TypeVar("PartT", bound=BaseModel)


class EngineSettings(EngineAccess):
    """Requests to engines."""

    engine_timeout_s: Seconds = Field(900.0, description="Time-out of one request to an engine.")


class ScoringSettings(ScoringRules):
    """Scores of tasks that say nothing of their own, and where scorers are found."""

    scorer_modules: list[str] = Field([], description="Modules to import; importing them registers their scorers.")
    agent_config_path: Path | None = Field(
        None,
        description="YAML file of the agents that summarize long tool results (browse) and judge answers (scorer).",
    )


class PromptSettings(PromptRules):
    """What the model reads, besides the tasks and its own replies; when it becomes too long."""

    chat_template: str = Field(
        "auto",
        description="auto: the model's own; where it shows no tools, their schemas and the format of tool_call_parser are put "
        "into the system message. none: such a template is refused at the start. Else: a Jinja file in place of the model's, of "
        "this process's own policy (docs/bring/tools.md).",
    )

    @field_validator("tool_call_parser")
    @classmethod
    def a_parser_has_this_name(cls, name: str) -> str:
        get_parser(name)
        return name


class CoreConfig(ServiceConfig, RuleSettings):
    """The core's settings. Those of `RuleSettings` belong to the run: what is not given is read there: docs/train/rules.md.

    `tenants`: modules with a `TENANT`, in the order in which they are opened (`sampler/core/tenant.py`).
    """

    tenants: ClassVar[tuple[str, ...]] = ()

    section: ClassVar[str] = "sampler"
    program: ClassVar[str] = "python -m sampler"

    run: RunName = Field(description="Name of the run, and of the database that its samplers and trainers share.")
    db_connection_string: str = secret_field(description="Connection string of the MongoDB server.")
    policy: PolicyName = Field(DEFAULT_POLICY, description="The policy that this process samples.")
    model_name_or_path: TokenizerFolder = Field(
        description="Hugging Face directory with tokenizer and chat template, or a name of the Hub: Qwen/Qwen3-4B."
    )
    other_policies: dict[PolicyName, TokenizerFolder] = Field(
        {},
        description="Other policies that take turns in the episodes, each trained by its own job, and their Hugging Face "
        'directories: {"judge": "/models/judge"}. See docs/train/two_policies.md.',
    )
    frozen_policies: list[str] = Field(
        [],
        description="Members of other_policies without a trainer: they keep the weights that their engines loaded.",
    )
    sampler: str | None = Field(
        None,
        description="Plays tasks that name no sampler: a name (mcp, agent, environment, or one of samplers), or an "
        "AsyncSampler subclass as module:Class or FILE.py:Class. None: agent if agent or agent_command is set, else mcp.",
    )
    samplers: dict[SamplerName, str] = Field(
        {},
        description="Names by which tasks choose a sampler of yours (their field sampler), as module:Class or FILE.py:Class: "
        '{"grid": "my_package.grid:GridSampler"}. See docs/bring/custom_samplers.md.',
    )

    metrics_address: Address | None = Field(None, description=DESCRIPTION)
    log_level: LogLevel = Field("INFO", description="Lowest severity that is logged.")

    group: GroupSettings = GroupSettings()
    scoring: ScoringSettings = ScoringSettings()
    prompt: PromptSettings = PromptSettings()
    engines: EngineSettings = EngineSettings()
    tools: ToolSettings = ToolSettings()
    queue: QueueSettings = QueueSettings()

    @model_validator(mode="after")
    def names_of_samplers_are_new(self) -> Self:
        taken = [name for name in self.samplers if name in BUNDLED]
        if taken:
            raise ValueError(f"samplers names {taken[0]!r}, which is a bundled sampler; expected another name")
        return self

    @model_validator(mode="after")
    def other_policies_are_others(self) -> Self:
        if self.policy in self.other_policies:
            raise ValueError(f"other_policies names {self.policy!r}, this process's own policy")
        return self

    @model_validator(mode="after")
    def frozen_policies_take_turns(self) -> Self:
        strange = [policy for policy in self.frozen_policies if policy not in self.other_policies]
        if strange:
            known = ", ".join(self.other_policies) or "none"
            raise ValueError(f"frozen_policies names {strange[0]!r}; expected members of other_policies: {known}")
        return self

    @model_validator(mode="after")
    def actors_have_policies_of_the_run(self) -> Self:
        for name, actor in self.seats.actors.items():
            if actor.policy is not None and actor.policy not in self.policies:
                raise ValueError(
                    f"actors.{name}.policy is {actor.policy!r}; expected one of {', '.join(self.policies)} (see other_policies)"
                )
        return self

    @model_validator(mode="after")
    def turn_sources_are_others(self) -> Self:
        if self.policy in self.sampling.turn_sources:
            raise ValueError(f"turn_sources names {self.policy!r}: the policy itself gets the remaining share")
        return self

    def part(self, kind: type[PartT]) -> PartT:
        """These settings as those of a tenant. Raises TypeError in a program that has none of that tenant."""
        if not isinstance(self, kind):
            raise TypeError(f"{type(self).__name__} has no {kind.__name__}")
        return self

    @property
    def policies(self) -> list[str]:
        """The policies that take turns in the episodes; the first owns the tasks."""
        return [self.policy, *self.other_policies]

    @property
    def trained_policies(self) -> list[str]:
        """Members of `policies` that have a trainer: admission waits only for these, and only these get training data."""
        return [policy for policy in self.policies if policy not in self.untrained_policies]

    @property
    def untrained_policies(self) -> list[str]:
        """Members of `other_policies` without a trainer: the frozen ones, and those whose actors are all frozen or pinned."""
        return untrained(list(self.other_policies), self.frozen_policies, self.seats.actors)
