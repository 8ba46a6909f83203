"""The optimizer: AdamW, and its learning rate over the steps."""

from typing import Annotated

from pydantic import Field

from shared.configuration.sections import Section
from trainer.optimizer import OptimizerConfig
from trainer.schedule import Schedule

Positive = Annotated[int, Field(gt=0)]


class OptimizerSettings(Section):
    """AdamW, and its learning rate over the steps."""

    max_steps: Positive = Field(100, description="Optimizer steps of the whole run, which then ends.")
    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    lr_schedule: Schedule = Field("constant", description="constant, linear or cosine.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="Floor of a falling schedule, as a fraction of the peak.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of matrices; norms and biases have none.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW.")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="AdamW.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip by global norm; 0: no clipping.")

    def adamw(self) -> OptimizerConfig:
        return OptimizerConfig(**self.model_dump())
