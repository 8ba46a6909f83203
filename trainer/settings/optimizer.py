"""The optimizer, and its learning rate over the steps."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from shared.configuration.sections import Section

Positive = Annotated[int, Field(gt=0)]
Schedule = Literal["constant", "linear", "cosine"]
Optim = Literal["adamw", "adamw_8bit", "adafactor", "muon"]
OPTIM = (
    "adamw, adamw_8bit (a quarter of its memory), adafactor (almost none) or muon (half of it): docs/train/memory.md."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """An optimizer and its schedule. Weight decay is for matrices only, not for norms."""

    optim: Optim = "adamw"
    learning_rate: float = 1e-6
    lr_schedule: Schedule = "constant"
    warmup_steps: int = 0
    max_steps: int = 1000  # where a falling schedule reaches its floor
    min_lr_ratio: float = 0.1
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0  # 0: no clipping


class OptimizerSettings(Section):
    """The optimizer, and its learning rate over the steps."""

    optim: Optim = Field("adamw", description=OPTIM)
    max_steps: Positive = Field(100, description="Optimizer steps of the whole run, which then ends.")
    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate.")
    lr_schedule: Schedule = Field("constant", description="constant, linear or cosine.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="Floor of a falling schedule, as a fraction of the peak.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of matrices; norms and biases have none.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's, in 8 bits too.")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="AdamW's, in 8 bits too.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip by global norm; 0: no clipping.")

    def chosen(self) -> OptimizerConfig:
        return OptimizerConfig(**self.model_dump())
