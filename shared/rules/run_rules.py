"""All rules of a run: the settings that decide what is learned. Guide: docs/train/rules.md.

    a rule            two processes that differ in it would make different training data: temperature, max_turns, advantage
    not a rule        how a process runs (addresses, time-outs, concurrency, files), and what a task says itself

`RuleSettings` are settings of the sampler. `Rules` are those of one number, as a document has them by section; they add what a
process derives from its own settings: the chat template's digest, and the names of the policies.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from shared.configuration.sections import Section, flattened, sections_of, settings_of
from shared.documents.actors import Actor, trains
from shared.names import PolicyName
from shared.rules.actors import ActorsConfig
from shared.rules.context import NewContext
from shared.rules.episodes import AgentRules, BudgetRules, GameRules, PromptRules, SamplingRules, ScoringRules
from shared.rules.groups import GroupConfig, SettlementRules


class RuleSettings(BaseModel):
    """Settings of the sampler that belong to the run, by section."""

    group: GroupConfig = GroupConfig()
    scoring: ScoringRules = ScoringRules()
    prompt: PromptRules = PromptRules()
    sampling: SamplingRules = SamplingRules()
    budget: BudgetRules = BudgetRules()
    seats: ActorsConfig = ActorsConfig()
    agents: AgentRules = AgentRules()
    environments: GameRules = GameRules()

    @property
    def budget_tokens(self) -> int:
        """The longest prompt before the context policy acts."""
        return self.prompt.context_budget_tokens or self.budget.max_tokens - self.budget.max_new_tokens

    @model_validator(mode="after")
    def a_whole_reply_fits_behind_the_context_budget(self) -> Self:
        most = self.budget.max_tokens - self.budget.max_new_tokens
        if self.prompt.new_context is not NewContext.DISABLED and not 0 < self.budget_tokens <= most:
            raise ValueError(
                f"context_budget_tokens is {self.budget_tokens}; expected at most max_tokens - max_new_tokens = {most}"
            )
        return self

    @model_validator(mode="after")
    def one_thing_alone_narrows_what_training_samples_from(self) -> Self:
        """The trainer truncates its own logits, and has no grammar: of both together it could not tell which tokens were left."""
        if self.agents.agent_output_format == "constrain" and not self.sampling.truncation.keeps_all:
            raise ValueError(
                f"agent_output_format is constrain, and training samples with {self.sampling.truncation}; expected one of them: "
                "the trainer does not know what a grammar leaves to truncate"
            )
        return self


class TemplateRules(PromptRules):
    """The prompt of a number."""

    template_digest: str = Field(
        description="Digest of the chat template, which model_name_or_path or the setting chat_template names."
    )


class PolicyRules(Section):
    """Policies that take turns besides the one that owns the tasks."""

    other_policies: list[PolicyName] = Field(
        [], description="Their names; the setting has their folders, which are a process's own."
    )
    frozen_policies: list[str] = Field([], description="Those without a trainer, which get no training data.")


class Rules(RuleSettings, Section):
    """All rules of one number."""

    prompt: TemplateRules
    policies: PolicyRules = PolicyRules()

    @property
    def untrained_policies(self) -> list[str]:
        return untrained(self.policies.other_policies, self.policies.frozen_policies, self.seats.actors)

    @property
    def settlement(self) -> SettlementRules:
        return SettlementRules(**dict(self.group), untrained_policies=sorted(self.untrained_policies))

    def plain(self) -> dict[str, Any]:
        """{rule: its plain value}."""
        return flattened(Rules, self.model_dump(mode="json"))

    def sections(self) -> dict[str, dict[str, Any]]:
        """Plain values, as a document has them."""
        values = self.model_dump(mode="json")
        return {IN_DOCUMENT.get(section, section): values[section] for section in Rules.model_fields}


IN_DOCUMENT = {"seats": "actors"}  # sections that a document names otherwise
SECTIONS: Mapping[str, type[Section]] = {IN_DOCUMENT.get(name, name): kind for name, kind in sections_of(Rules).items()}
RULE_NAMES = tuple(settings_of(RuleSettings))  # of the sampler's settings


def untrained(other: Sequence[str], frozen: Sequence[str], actors: Mapping[str, Actor]) -> list[str]:
    """The policies without a trainer: those that are frozen, and those whose actors are all frozen or pinned."""

    def never_learns(policy: str) -> bool:
        labels = [actor.label for actor in actors.values() if actor.policy == policy]
        return bool(labels) and not any(map(trains, labels))

    return [policy for policy in other if policy in frozen or never_learns(policy)]
