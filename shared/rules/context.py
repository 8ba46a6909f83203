"""Rules of an episode whose context grows too long or whose model loops. Guide: docs/train/context.md.

They are settings of the sampler, and belong to the run (`shared/rules/run_rules.py`).
"""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from shared.configuration.sections import Section


class NewContext(StrEnum):
    DISABLED = "disabled"  # the episode goes on until `max_tokens`
    DISCARD_ALL_TOOLS = "discard_all_tools"  # replies stay, each tool result becomes one line
    DISCARD_ALL = "discard_all"  # everything after the question becomes a summary


class ContextConfig(Section):
    """Settings of context policies. Raises ValueError for meaningless combinations."""

    new_context: NewContext = Field(
        NewContext.DISABLED,
        description="If the next prompt would exceed context_budget_tokens: let it grow to max_tokens (disabled), replace "
        "each old tool result by one line (discard_all_tools), or everything after the question by a summary (discard_all).",
    )
    context_budget_tokens: int | None = Field(
        None, gt=0, description="The longest prompt before new_context acts. None: max_tokens - max_new_tokens."
    )
    context_summary: Literal["policy", "browse_agent"] = Field(
        "policy",
        description="Writer of the summary of discard_all: the policy itself, in a reply that is trained like any other, or "
        "the browse agent.",
    )
    repetition_early_stop_times: int = Field(
        0,
        ge=-1,
        description="End the episode when a reply occurred this often, or was cut off while its tail repeated this often. "
        "0 or -1: never.",
    )
    enable_repetition_compress: bool = Field(
        False, description="Instead of ending, drop the repetitions, apply new_context, and continue."
    )

    @model_validator(mode="after")
    def settings_of_a_context_policy_need_one(self) -> Self:
        given = {
            "context_budget_tokens": self.context_budget_tokens is not None,
            "enable_repetition_compress": self.enable_repetition_compress,
        }
        if self.new_context is NewContext.DISABLED and any(given.values()):
            name = next(name for name, is_given in given.items() if is_given)
            raise ValueError(f"{name} needs a context policy: set new_context to discard_all_tools or discard_all")
        if self.context_summary != "policy" and self.new_context is not NewContext.DISCARD_ALL:
            raise ValueError(
                f"context_summary is {self.context_summary}; only new_context=discard_all writes a summary"
            )
        return self

    @model_validator(mode="after")
    def compression_of_repetitions_needs_their_number(self) -> Self:
        if self.enable_repetition_compress and self.repetition_early_stop_times < 1:
            raise ValueError("enable_repetition_compress needs repetition_early_stop_times, such as 3")
        return self
