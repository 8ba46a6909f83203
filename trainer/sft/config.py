"""The configuration of supervised fine-tuning: `python -m trainer.sft --help` prints it."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from shared.configuration.loading import ServiceConfig
from shared.configuration.secrets import secret_field
from shared.configuration.sections import Section
from shared.names import DEFAULT_POLICY, PolicyName, RunName
from trainer.settings.checkpoint import Tracker
from trainer.settings.ineffective import unused
from trainer.settings.memory import MemorySettings
from trainer.settings.model import ModelSettings, ParallelSettings
from trainer.settings.optimizer import OPTIM, Optim, OptimizerConfig, Schedule

UNUSED = {  # settings that do nothing while another one has this value
    "min_lr_ratio": ("lr_schedule", "constant"),
    "keep_checkpoints": ("save_steps", 0),
}


class RecordFilter(Section):
    """Which records of a run are imitated."""

    switch: ClassVar = ("run", None)

    run: RunName = Field(description="Instead of train_file: train on records of this run.")
    db_connection_string: str = secret_field(description="MongoDB of the run.")
    policy: PolicyName = Field(DEFAULT_POLICY, description="Whose records.")
    min_score: float = Field(1.0, description="Records of this score or more.")
    source: list[str] | None = Field(None, description="Records of tasks of these sources. None: of all.")
    best_of_group: bool = Field(
        False, description="Of each task only the record of the highest score; of several the shortest."
    )
    max_records: int = Field(0, ge=0, description="At most so many: those of the newest tasks. 0: all.")


class SftDataSettings(Section):
    """What is imitated, and how a step is made of it: a file of conversations, or the records of a run."""

    train_file: Path | None = Field(
        None,
        description='JSONL: one {"messages": [...], "tools": [...], "images": [...]} per line; the replies of the assistant are '
        "trained.",
    )
    records: RecordFilter | None = None
    chat_template: Path | None = Field(
        None,
        description="Jinja file in place of the model's chat template, for train_file: the samplers' own, where they have one. "
        "None: the model's.",
    )
    epochs: float = Field(1.0, gt=0, description="Passes over the samples when max_steps is 0.")
    samples_per_step: int = Field(
        32, ge=1, description="Conversations or records per optimizer step, over all processes."
    )
    max_tokens: int = Field(4096, ge=2, description="Longer samples are left out, and counted.")
    tokens_per_row: int = Field(512, ge=2, description="Budget of one forward; on CPU short rows are fastest.")

    @model_validator(mode="after")
    def data_is_a_file_or_a_run(self) -> Self:
        if (self.train_file is None) == (self.records is None):
            raise ValueError(
                "expected either train_file, a JSONL file of conversations, or run, whose records are trained"
            )
        return self


class SftOptimizerSettings(Section):
    """The optimizer, and its learning rate over the steps."""

    optim: Optim = Field("adamw", description=OPTIM)
    max_steps: int = Field(0, ge=0, description="Optimizer steps; 0 means as many as `epochs` needs.")
    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate.")
    lr_schedule: Schedule = Field("cosine", description="After the warm-up: constant, linear or cosine decay.")
    warmup_steps: int = Field(0, ge=0, description="Steps over which the rate climbs linearly to its peak.")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="Where the decay ends, as a share of the peak.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of matrices; norms and biases have none.")
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="AdamW's second moment; 0.95 forgets faster.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip the global gradient norm; 0 turns it off.")
    router_aux_loss_coef: float = Field(
        0.0,
        ge=0,
        description="Coefficient of the load-balancing loss of a mixture of experts (docs/train/training.md).",
    )

    def chosen(self, max_steps: int) -> OptimizerConfig:
        values = self.model_dump(exclude={"router_aux_loss_coef"})
        return OptimizerConfig(**values | {"max_steps": max_steps})


class SftCheckpointSettings(Section):
    """What is written while it trains and at its end."""

    save_steps: int = Field(
        0, ge=0, description="Steps between checkpoints; 0 writes none, unless Ctrl-C or SIGTERM ends the training."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Checkpoints kept.")
    output_dtype: Literal["float32", "bfloat16", "float64"] | None = Field(
        None, description="Of the written weights; none means that of the parameters."
    )


class SftReportSettings(Section):
    """Where the metrics go."""

    report_to: list[Tracker] | None = Field(
        None,
        description="Trackers: tensorboard, wandb, swanlab, mlflow, trackio, none. None: tensorboard where installed.",
    )


class SftConfig(ServiceConfig):
    """Supervised fine-tuning of a chat model on a JSONL file of conversations, or on the good records of a run."""

    section: ClassVar[str] = "sft"
    program: ClassVar[str] = "python -m trainer.sft"
    about: ClassVar[str] = "Trains a model on conversations, or on a run's good records."
    usage: ClassVar[str] = "--model_name_or_path DIR (--train_file FILE.jsonl | --run RUN) [--setting value ...]"
    example: ClassVar[str] = (
        "tandem sft --model_name_or_path Qwen/Qwen3-4B --train_file conversations.jsonl --output_dir output/sft"
    )
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "model_name_or_path",
            "train_file",
            "run",
            "db_connection_string",
            "min_score",
            "output_dir",
            "config",
            "epochs",
            "max_steps",
            "samples_per_step",
            "learning_rate",
            "lr_schedule",
            "max_tokens",
            "tokens_per_row",
            "chat_template",
            "lora_rank",
            "dtype",
            "activation_checkpointing",
            "save_steps",
            "report_to",
            "seed",
        ),
    )

    output_dir: Path = Field(description="Checkpoints, metrics.jsonl, and at the end final/, a Hugging Face directory.")
    seed: int = Field(0, ge=0, description="Of the order of the samples, and of new adapters.")

    model: ModelSettings
    memory: MemorySettings = MemorySettings()
    parallel: ParallelSettings = ParallelSettings()
    data: SftDataSettings
    optimizer: SftOptimizerSettings = SftOptimizerSettings()
    checkpoint: SftCheckpointSettings = SftCheckpointSettings()
    report: SftReportSettings = SftReportSettings()

    @model_validator(mode="after")
    def output_must_be_new(self) -> Self:
        if (self.output_dir / "final").exists():
            raise ValueError(f"{self.output_dir / 'final'} exists: that run is complete; choose another output_dir")
        return self

    def without_effect(self) -> dict[str, str]:
        """{setting: why it has no effect}."""
        reasons = unused(self, UNUSED)
        if self.optimizer.max_steps and self.data.epochs != 1.0:
            reasons["epochs"] = f"max_steps is {self.optimizer.max_steps}"
        return reasons
