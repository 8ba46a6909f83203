"""The sampler's configuration: `python -m sampler --help` prints it."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from sampler.actors.config import ActorsConfig
from sampler.engine.client.access import EngineAccess
from sampler.environments.play_config import EnvironmentPlayConfig
from sampler.gateway.config import AgentPlayConfig
from sampler.history.config import ContextConfig, NewContext
from sampler.parsers import get_parser
from sampler.settlement.config import GroupSettings
from sampler.tools.isolation import Sandbox
from shared.configuration.loading import LogLevel, ServiceConfig
from shared.configuration.secrets import secret_field
from shared.documents.actors import trains
from shared.documents.feedback import MAX_DEADLINE_S
from shared.documents.run import HEARTBEAT_S
from shared.documents.scoring import MAX_SCORERS, WeightedScorer, repeated
from shared.files.hub import TokenizerFolder
from shared.names import DEFAULT_POLICY, PolicyName, RunName, SamplerName
from shared.processes.metrics_page import DESCRIPTION, Address
from shared.tasks.sampler_names import BUNDLED
from shared.tasks.temperatures import LEAST_TEMPERATURE

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]


class EvalSampling(BaseModel, frozen=True, extra="forbid"):
    """Sampling of evaluation episodes, except their temperature, in SGLang's names and ranges. None: as in training."""

    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, gt=0)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=2)


class SamplerConfig(
    ServiceConfig, ActorsConfig, ContextConfig, GroupSettings, EngineAccess, AgentPlayConfig, EnvironmentPlayConfig
):
    """The sampler's settings, including those of `ActorsConfig` (several actors), `ContextConfig` (long contexts),
    `GroupSettings` (completed groups), `AgentPlayConfig` (foreign agents) and `EnvironmentPlayConfig` (environments)."""

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
    max_turns: Positive = Field(8, description="Maximum replies of the model per episode.")
    max_new_tokens: Positive = Field(512, description="Maximum tokens of one reply.")
    max_prompt_tokens: Positive = Field(
        8192, description="Maximum tokens of the first prompt; a longer one ends the episode with length_limit."
    )
    max_tokens: Positive = Field(32768, description="Maximum tokens of an episode's context.")
    turn_sources: dict[PolicyName, Share] = Field(
        {},
        description="Cross-policy sampling: shares of the training turns that are drawn from another source: "
        '"lagging" (the policy\'s engines with follow_every > 1) or from another policy: {"lagging": 0.3}.',
    )
    temperature: float = Field(
        1.0,
        ge=LEAST_TEMPERATURE,
        description="Temperature of training episodes; log-probs are computed at it. Greedy evaluation: eval_temperature 0.",
    )
    eval_temperature: float | None = Field(
        None, ge=0, description="Temperature of evaluation episodes. None: as in training."
    )
    eval_sampling: EvalSampling = Field(
        EvalSampling(),
        description="Evaluation only: top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty. Training "
        "samples from the policy itself: any of these would make the stored log-probs belong to another distribution.",
    )
    system_prompt: str | None = Field(None, description="System prompt of tasks that have none of their own.")
    answer_instruction: str = Field(
        "auto",
        description="Instruction for the answer's form, appended to the system prompt for the scorer. auto: the sentence for "
        "the task's answer_schema, unless the task contains it (docs/bring/scorers.md); none: nothing; else: this text.",
    )
    tool_call_parser: str = Field(
        "hermes",
        description="Format of the model's tool calls: hermes (or qwen, qwen25), qwen3_coder, mistral, llama3, deepseekv3, "
        "pythonic, kimi_k2, glm45, minicpm.",
    )
    template_rewrites: Literal["branch", "keep"] = Field(
        "branch",
        description="If the chat template later renders older turns differently (without their reasoning, say): start a "
        "branch with the text that the model would see at inference, or keep the history as it was sampled.",
    )
    chat_template: str = Field(
        "auto",
        description="auto: the model's own; where it shows no tools, their schemas and the format of tool_call_parser are put "
        "into the system message. none: such a template is refused at the start. Else: a Jinja file in place of the model's, of "
        "this process's own policy (docs/bring/tools.md).",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description='Variables of the chat template, such as {"enable_thinking": false}.'
    )
    default_scorer: str | None = Field(
        None,
        description="Scorer of tasks that name none. None: agentcpm if agent_config_path has a scorer_agent, "
        "else exact_match.",
    )
    default_scorers: Annotated[list[WeightedScorer], Field(max_length=MAX_SCORERS)] = Field(
        [],
        description="Several scorers of tasks that name none, in place of default_scorer; the score is the sum of weight times "
        'value: [{"name": "math"}, {"name": "brief", "weight": 0.1}].',
    )
    feedback_deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = Field(
        None,
        description="Training episodes wait this long for a score that comes later (`tandem feedback`, docs/bring/any_agent.md). "
        "None: the score is due at the episode's end, as it always is in evaluation.",
    )
    feedback_missing: Literal["scorer", "abandon"] = Field(
        "scorer",
        description="If no feedback came before the deadline: scorer: the score that the episode got at its end counts; "
        "abandon: the episode is set aside without a score, and no scorer is asked.",
    )
    scorer_modules: list[str] = Field([], description="Modules to import; importing them registers their scorers.")
    agent_config_path: Path | None = Field(
        None,
        description="YAML file of the agents that summarize long tool results (browse) and judge answers (scorer).",
    )
    exclude_tools: list[str] = Field(
        [], description="Tools that no task may use, as names or patterns (`files.write_*`)."
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
    max_tool_result_tokens: Positive = Field(
        4096, description="Maximum tokens of a tool result; the middle of a longer one is cut, visibly."
    )
    max_tool_result_chars: Positive = Field(
        64_000, description="The same in characters, applied before tokens are counted."
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

    @property
    def budget_tokens(self) -> int:
        """The longest prompt before the context policy acts."""
        return self.context_budget_tokens or self.max_tokens - self.max_new_tokens

    @field_validator("tool_call_parser")
    @classmethod
    def a_parser_has_this_name(cls, name: str) -> str:
        get_parser(name)
        return name

    @model_validator(mode="after")
    def a_whole_reply_fits_behind_the_context_budget(self) -> Self:
        most = self.max_tokens - self.max_new_tokens
        if self.new_context is not NewContext.DISABLED and not 0 < self.budget_tokens <= most:
            raise ValueError(
                f"context_budget_tokens is {self.budget_tokens}; expected at most max_tokens - max_new_tokens = {most}"
            )
        return self

    @model_validator(mode="after")
    def leases_are_renewed_before_they_end(self) -> Self:
        if self.renew_s >= self.lease_s:
            raise ValueError(f"renew_s is {self.renew_s:g}; expected less than lease_s = {self.lease_s:g}")
        return self

    @model_validator(mode="after")
    def an_agent_is_a_function_or_a_command(self) -> Self:
        if self.agent is not None and self.agent_command is not None:
            raise ValueError("agent and agent_command are both set; expected one of them")
        return self

    @model_validator(mode="after")
    def names_of_samplers_are_new(self) -> Self:
        if taken := [name for name in self.samplers if name in BUNDLED]:
            raise ValueError(f"samplers names {taken[0]!r}, which is a bundled sampler; expected another name")
        return self

    @model_validator(mode="after")
    def what_is_preloaded_is_for_a_command_outside_of_a_sandbox(self) -> Self:
        if self.agent_preload and self.agent_command is None:
            raise ValueError("agent_preload is set without agent_command, which it is for; set both, or neither")
        if self.agent_preload and self.tool_sandbox != "off":
            raise ValueError(
                f"agent_preload and tool_sandbox = {self.tool_sandbox} are both set, and a fork runs outside of the sandbox; "
                "leave out one of them"
            )
        return self

    @model_validator(mode="after")
    def default_scorers_are_named_once(self) -> Self:
        if self.default_scorer is not None and self.default_scorers:
            raise ValueError("default_scorer and default_scorers are both set; expected one of them")
        if (twice := repeated(self.default_scorers)) is not None:
            raise ValueError(f"default_scorers names {twice!r} twice; expected each scorer once")
        return self

    @model_validator(mode="after")
    def other_policies_are_others(self) -> "SamplerConfig":
        if self.policy in self.other_policies:
            raise ValueError(f"other_policies names {self.policy!r}, this process's own policy")
        return self

    @model_validator(mode="after")
    def frozen_policies_take_turns(self) -> "SamplerConfig":
        if strange := [policy for policy in self.frozen_policies if policy not in self.other_policies]:
            known = ", ".join(self.other_policies) or "none"
            raise ValueError(f"frozen_policies names {strange[0]!r}; expected members of other_policies: {known}")
        return self

    @model_validator(mode="after")
    def actors_have_policies_of_the_run(self) -> "SamplerConfig":
        for name, actor in self.actors.items():
            if actor.policy is not None and actor.policy not in self.policies:
                raise ValueError(
                    f"actors.{name}.policy is {actor.policy!r}; expected one of {', '.join(self.policies)} (see other_policies)"
                )
        return self

    @model_validator(mode="after")
    def shares_of_turns_leave_the_rest_to_the_policy(self) -> "SamplerConfig":
        if self.policy in self.turn_sources:
            raise ValueError(f"turn_sources names {self.policy!r}: the policy itself gets the remaining share")
        if sum(self.turn_sources.values()) > 1:
            raise ValueError(f"turn_sources add up to {sum(self.turn_sources.values()):g}; expected at most 1")
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
        return [p for p in self.other_policies if p in self.frozen_policies or self._never_learns(p)]

    def _never_learns(self, policy: str) -> bool:
        labels = [actor.label for actor in self.actors.values() if actor.policy == policy]
        return bool(labels) and not any(map(trains, labels))
