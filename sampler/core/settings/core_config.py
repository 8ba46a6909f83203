"""Settings of every process that plays, lends out or settles episodes. Tenants add theirs in `sampler/settings.py`."""

from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import BaseModel, Field, field_validator, model_validator

from sampler.core.parsers import get_parser
from sampler.core.settings.engine_access import EngineAccess
from sampler.core.settings.groups import GroupSettings
from sampler.core.tools.isolation import Sandbox
from shared.configuration.loading import LogLevel, ServiceConfig
from shared.configuration.secrets import secret_field
from shared.documents.run import HEARTBEAT_S
from shared.files.hub import TokenizerFolder
from shared.http.metrics_page import DESCRIPTION, Address
from shared.names import DEFAULT_POLICY, PolicyName, RunName, SamplerName
from shared.rules.run_rules import RuleSettings, untrained
from shared.tasks.sampler_names import BUNDLED

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]

PartT = TypeVar("PartT", bound=BaseModel)


class CoreConfig(ServiceConfig, RuleSettings, GroupSettings, EngineAccess):
    """The core's settings. Those of `RuleSettings` belong to the run: what is not given is read there: docs/train/rules.md.

    `tenants`: modules with a `TENANT`, in the order in which they are opened (`sampler/core/tenant.py`).
    """

    tenants: ClassVar[tuple[str, ...]] = ()

    section: ClassVar[str] = "sampler"
    program: ClassVar[str] = "python -m sampler"

    # the run
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

    # episodes
    mcp_manager_url: str | None = Field(
        None,
        description="Tool servers: a URL (ending in /sse: HTTP+SSE; in /mcpapi: a manager; else streamable HTTP) or an "
        "mcpServers JSON. None: no tools.",
    )
    chat_template: str = Field(
        "auto",
        description="auto: the model's own; where it shows no tools, their schemas and the format of tool_call_parser are put "
        "into the system message. none: such a template is refused at the start. Else: a Jinja file in place of the model's, of "
        "this process's own policy (docs/bring/tools.md).",
    )
    scorer_modules: list[str] = Field([], description="Modules to import; importing them registers their scorers.")
    agent_config_path: Path | None = Field(
        None,
        description="YAML file of the agents that summarize long tool results (browse) and judge answers (scorer).",
    )
    tool_user: str | None = Field(
        None,
        description="Run tool servers over stdio, and agent_command, as this user (needs root). None: this process's user.",
    )
    tool_sandbox: Sandbox = Field(
        "off",
        description="bubblewrap: isolate stdio tool servers and agent_command from other processes, and drop capabilities. "
        "Files and network stay.",
    )
    tool_timeout_s: Seconds = Field(
        60.0, description="One tool call without progress; then it is an infrastructure failure."
    )
    tool_open_s: Seconds = Field(
        30.0,
        description="Time-out for opening a session and listing its tools; then the server counts as unavailable for a while.",
    )
    tool_wait_s: Seconds = Field(
        30.0,
        description="Time an episode waits for an unavailable tool server; then its slot is released, and no failure is counted.",
    )
    max_opening_sessions: Positive = Field(
        64, description="Maximum sessions with remote tool servers that are being opened at once; further ones wait."
    )
    max_starting_servers: Positive | None = Field(
        None, description="Maximum stdio tool servers that start at once. None: two per core."
    )
    max_raw_result_chars: Positive = Field(
        16_000, description="Characters stored of a result that the model did not read whole."
    )
    episode_timeout_s: Seconds = Field(
        3600.0, description="Time-out of one episode; then it is an infrastructure failure."
    )

    # the queue
    max_concurrent_episodes: Positive = Field(256, description="Maximum episodes that this process plays at once.")
    adaptive_concurrency: bool = Field(
        True,
        description="Play as many episodes at once as the engines take without a queue, a full cache or slow tokens. "
        "False: always max_concurrent_episodes.",
    )
    lease_s: Seconds = Field(
        60.0, description="A slot goes to another worker when its lease was not renewed for this long."
    )
    renew_s: Seconds = Field(15.0, description="Interval of lease renewals.")
    max_failures: Positive = Field(8, description="Infrastructure failures after which a slot fails for good.")
    retry_delay_s: Seconds = Field(
        2.0, description="Delay before a failed slot is retried; doubles with every failure."
    )
    grace_s: Seconds = Field(30.0, description="Time for running episodes to end after SIGTERM; the rest is released.")
    poll_s: Seconds = Field(
        0.3, description="Interval at which an idle process polls for work and for the trainer's progress."
    )
    heartbeat_s: Seconds = Field(HEARTBEAT_S, description="Interval of this process's heartbeats.")
    engine_timeout_s: Seconds = Field(900.0, description="Time-out of one request to an engine.")
    open_all_tasks: bool = Field(
        False,
        description="Open all tasks at once, without waiting for a trainer: for evaluation or data generation only.",
    )
    metrics_address: Address | None = Field(None, description=DESCRIPTION)
    log_level: LogLevel = Field("INFO", description="Lowest severity that is logged.")

    @field_validator("tool_call_parser")
    @classmethod
    def a_parser_has_this_name(cls, name: str) -> str:
        get_parser(name)
        return name

    @model_validator(mode="after")
    def leases_are_renewed_before_they_end(self) -> Self:
        if self.renew_s >= self.lease_s:
            raise ValueError(f"renew_s is {self.renew_s:g}; expected less than lease_s = {self.lease_s:g}")
        return self

    @model_validator(mode="after")
    def names_of_samplers_are_new(self) -> Self:
        if taken := [name for name in self.samplers if name in BUNDLED]:
            raise ValueError(f"samplers names {taken[0]!r}, which is a bundled sampler; expected another name")
        return self

    @model_validator(mode="after")
    def other_policies_are_others(self) -> Self:
        if self.policy in self.other_policies:
            raise ValueError(f"other_policies names {self.policy!r}, this process's own policy")
        return self

    @model_validator(mode="after")
    def frozen_policies_take_turns(self) -> Self:
        if strange := [policy for policy in self.frozen_policies if policy not in self.other_policies]:
            known = ", ".join(self.other_policies) or "none"
            raise ValueError(f"frozen_policies names {strange[0]!r}; expected members of other_policies: {known}")
        return self

    @model_validator(mode="after")
    def actors_have_policies_of_the_run(self) -> Self:
        for name, actor in self.actors.items():
            if actor.policy is not None and actor.policy not in self.policies:
                raise ValueError(
                    f"actors.{name}.policy is {actor.policy!r}; expected one of {', '.join(self.policies)} (see other_policies)"
                )
        return self

    @model_validator(mode="after")
    def turn_sources_are_others(self) -> Self:
        if self.policy in self.turn_sources:
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
        return untrained(list(self.other_policies), self.frozen_policies, self.actors)
