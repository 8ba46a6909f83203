"""The configuration of supervised fine-tuning: `python -m trainer.sft --help` prints it."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from shared.configuration.loading import ServiceConfig
from trainer.ineffective_settings import unused
from trainer.learner import OptimizerConfig
from trainer.modeling.compute_settings import ComputeSettings
from trainer.modeling.trainable import Trainable
from trainer.schedule import Schedule
from trainer.sft.records import RecordFilter

UNUSED = {  # settings that do nothing while another one has this value
    "min_lr_ratio": ("lr_schedule", "constant"),
    "save_total_limit": ("save_steps", 0),
    "lora_alpha": ("lora_rank", 0),
    "lora_target_modules": ("lora_rank", 0),
}


class SftConfig(ServiceConfig, RecordFilter, Trainable, ComputeSettings):
    """Supervised fine-tuning of a chat model on a JSONL file of conversations, or on the good records of a run."""

    section: ClassVar[str] = "sft"
    program: ClassVar[str] = "python -m trainer.sft"

    model_name_or_path: Path = Field(description="Hugging Face directory of the model to start from.")
    train_file: Path | None = Field(
        None,
        description='JSONL: one {"messages": [...], "tools": [...]} per line; the replies of the assistant are trained.',
    )
    output_dir: Path = Field(description="Checkpoints, metrics.jsonl, and at the end final/, a Hugging Face directory.")
    max_steps: int = Field(0, ge=0, description="Optimizer steps; 0 means as many as `epochs` needs.")
    epochs: float = Field(1.0, gt=0, description="Passes over the samples when max_steps is 0.")
    samples_per_step: int = Field(
        32, ge=1, description="Conversations or records per optimizer step, over all processes."
    )
    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate of AdamW.")
    lr_schedule: Schedule = Field("cosine", description="After the warm-up: constant, linear or cosine decay.")
    warmup_steps: int = Field(0, ge=0, description="Steps over which the rate climbs linearly to its peak.")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="Where the decay ends, as a share of the peak.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's, on matrices.")
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="AdamW's second moment; 0.95 forgets faster.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip the global gradient norm; 0 turns it off.")
    router_aux_loss_coef: float = Field(
        0.0, ge=0, description="Times the load-balancing loss of a mixture of experts (docs/training.md)."
    )
    max_tokens: int = Field(4096, ge=2, description="Longer samples are left out, and counted.")
    tokens_per_row: int = Field(512, ge=2, description="Budget of one forward; on CPU short rows are fastest.")
    output_dtype: str | None = Field(None, description="Of the written weights; none means that of the parameters.")
    seed: int = Field(0, ge=0, description="Of the order of the samples, and of new adapters.")
    save_steps: int = Field(
        0, ge=0, description="Steps between checkpoints; 0 writes none, unless Ctrl-C or SIGTERM ends the training."
    )
    save_total_limit: int = Field(2, ge=1, description="Checkpoints kept.")
    log_steps: int = Field(1, ge=1, description="Steps between lines of metrics.jsonl.")
    report_to: list[str] | None = Field(
        None,
        description="Trackers: tensorboard, wandb, swanlab, mlflow, trackio, none. None: tensorboard where installed.",
    )

    @model_validator(mode="after")
    def output_must_be_new(self) -> "SftConfig":
        if (self.output_dir / "final").exists():
            raise ValueError(f"{self.output_dir / 'final'} exists: that run is complete; choose another output_dir")
        return self

    @model_validator(mode="after")
    def data_is_a_file_or_a_run(self) -> "SftConfig":
        if (self.train_file is None) == (self.run is None):
            raise ValueError(
                "expected either train_file, a JSONL file of conversations, or run, whose records are trained"
            )
        if (self.run is None) != (self.db_connection_string is None):
            raise ValueError(
                "run and db_connection_string belong together: the run whose records are trained, and its MongoDB"
            )
        chosen = (RecordFilter.model_fields.keys() - {"run", "db_connection_string"}) & self.model_fields_set
        if self.run is None and chosen:
            raise ValueError(f"{min(chosen)} chooses records of a run: give run, or leave it out")
        return self

    def without_effect(self) -> dict[str, str]:
        """{setting: why it has no effect}."""
        found = unused(self, UNUSED)
        if self.max_steps and self.epochs != 1.0:
            found["epochs"] = f"max_steps is {self.max_steps}"
        return found

    def optimizer(self, max_steps: int) -> OptimizerConfig:
        names = ("learning_rate", "lr_schedule", "warmup_steps", "min_lr_ratio", "weight_decay", "adam_beta2")
        return OptimizerConfig(max_steps=max_steps, **{name: getattr(self, name) for name in (*names, "max_grad_norm")})
