"""Rules of episodes: how they are prompted, sampled, bounded and scored. They are settings of the sampler, and belong to the run
(`shared/rules/run_rules.py`): episodes of one group that differ in one of them would be other samples of another distribution.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from shared.configuration.sections import Section
from shared.documents.feedback import MAX_DEADLINE_S
from shared.documents.scoring import MAX_SCORERS, WeightedScorer, repeated
from shared.names import PolicyName
from shared.rules.context import ContextConfig
from shared.rules.temperatures import LEAST_TEMPERATURE
from shared.scores import LARGEST_SCORE
from shared.truncation import Truncation

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class EvalSampling(BaseModel, frozen=True, extra="forbid"):
    """Sampling of evaluation episodes, except their temperature, in SGLang's names and ranges. None: as in training.
    top_p 1, top_k -1 and min_p 0 switch a truncation of training off."""

    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=2)

    @model_validator(mode="after")
    def top_k_leaves_a_token(self) -> Self:
        if self.top_k == 0:
            raise ValueError("top_k is 0; expected 1 or more, or -1 for all tokens")
        return self


class BudgetRules(Section):
    """The length of episodes, in turns and tokens."""

    max_turns: Positive = Field(8, description="Maximum replies of the model per episode.")
    max_new_tokens: Positive = Field(512, description="Maximum tokens of one reply.")
    max_prompt_tokens: Positive = Field(
        8192, description="Maximum tokens of the first prompt; a longer one ends the episode with length_limit."
    )
    max_tokens: Positive = Field(32768, description="Maximum tokens of an episode's context.")
    max_tool_result_tokens: Positive = Field(
        4096, description="Maximum tokens of a tool result; the middle of a longer one is cut, visibly."
    )
    max_tool_result_chars: Positive = Field(
        64_000, description="The same in characters, applied before tokens are counted."
    )


class SamplingRules(Section):
    """The distributions that replies are drawn from."""

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
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Training samples from the fewest likeliest tokens whose probability reaches it (docs/train/training.md). "
        "Log-probs are of what is left, in the engine and in the trainer; SGLang reports no such. None: all tokens.",
    )
    top_k: int | None = Field(None, gt=1, description="The same, from the top_k likeliest tokens.")
    min_p: float | None = Field(
        None, ge=0, lt=1, description="The same, from tokens with at least min_p times the likeliest one's probability."
    )
    router_replay: bool = Field(
        False,
        description="Of a mixture of experts: engines say which experts computed each token of a training episode, and the "
        "trainer's routers repeat them (docs/train/training.md). The local engine, and SGLang with "
        "--enable-return-routed-experts; 384 bytes a token for 48 layers with 8 experts each.",
    )
    eval_temperature: float | None = Field(
        None, ge=0, description="Temperature of evaluation episodes. None: as in training."
    )
    eval_sampling: EvalSampling = Field(
        EvalSampling(),
        description="Evaluation's own top_p, top_k and min_p, where they are not those of training; and presence_penalty, "
        "frequency_penalty, repetition_penalty, which training cannot have: log-probs would be of a distribution that depends "
        "on the reply so far.",
    )

    @property
    def truncation(self) -> Truncation:
        """Of training episodes."""
        return Truncation.of({"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p})

    @model_validator(mode="after")
    def shares_of_turns_are_at_most_all(self) -> Self:
        if sum(self.turn_sources.values()) > 1:
            raise ValueError(f"turn_sources add up to {sum(self.turn_sources.values()):g}; expected at most 1")
        return self


class PromptRules(ContextConfig):
    """What the model reads, besides the tasks and its own replies. The template's text is a rule too, by its digest."""

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
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description='Variables of the chat template, such as {"enable_thinking": false}.'
    )
    exclude_tools: list[str] = Field(
        [], description="Tools that no task may use, as names or patterns (`files.write_*`)."
    )


class ScoringRules(Section):
    """Scores of tasks that say nothing of their own."""

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

    @model_validator(mode="after")
    def default_scorers_are_named_once(self) -> Self:
        if self.default_scorer is not None and self.default_scorers:
            raise ValueError("default_scorer and default_scorers are both set; expected one of them")
        twice = repeated(self.default_scorers)
        if twice is not None:
            raise ValueError(f"default_scorers names {twice!r} twice; expected each scorer once")
        return self


class AgentRules(Section):
    """Of episodes that a foreign agent plays."""

    agent_output_format: Literal["prompt", "constrain", "refuse"] = Field(
        "prompt",
        description="A form of the answer that a request demands (response_format, text.format, output_config, "
        "responseJsonSchema): put it into the system message; also sample under its grammar, with log-probs of the allowed "
        "tokens alone (SGLang); or refuse the request.",
    )
    agent_head_lines: int = Field(
        0,
        ge=0,
        description="Lines at the beginning of an agent's system prompt that may differ between requests of one conversation "
        "(a date, a request's number); the conversation keeps those of its first request.",
    )
    agent_crash: Literal["auto", "retry", "score"] = Field(
        "auto",
        description="An agent that raises, or whose command fails, after a reply of the model: score it with agent_crash_score, "
        "or play it again. auto: scored if the evidence says that the reply caused it (docs/bring/any_agent.md). "
        "Tasks may say it too.",
    )
    agent_crash_score: float = Field(
        0.0,
        allow_inf_nan=False,
        ge=-LARGEST_SCORE,
        le=LARGEST_SCORE,
        description="The score of an episode whose agent failed because of the model's reply, unless the agent has posted one.",
    )


class GameRules(Section):
    """Of games between seats."""

    cut_game_reward: float = Field(
        -1.0,
        allow_inf_nan=False,
        ge=-LARGEST_SCORE,
        le=LARGEST_SCORE,
        description="Reward of every seat in a game that max_turns or a seat's context cut: not above that of a loss, or who "
        "loses gains by never ending the game.",
    )
