"""The trainer's configuration: `python -m trainer --help` prints it."""

import socket
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from shared.configuration.loading import LogLevel, ServiceConfig, secret_field
from shared.names import DEFAULT_POLICY, PolicyName, RunName, shortened
from trainer.data.advantages import AdvantageNormalization, require_normalization
from trainer.ineffective_settings import unused
from trainer.learner import OptimizerConfig
from trainer.losses import LossConfig, LossName
from trainer.modeling.compute_settings import ComputeSettings
from trainer.modeling.trainable import Trainable
from trainer.presets import PRESETS
from trainer.publishing.broadcast import BroadcastSettings
from trainer.schedule import Schedule
from trainer.trees.staleness import StaleData

Positive = Annotated[int, Field(gt=0)]


UNUSED = {  # settings that do nothing while another one has this value
    "min_lr_ratio": ("lr_schedule", "constant"),
    "reference_model": ("kl_coefficient", 0.0),
    "retrained_interval": ("max_trained_count", 1),
    "full_every": ("publish_mode", "full"),
    "broadcast_address": ("weight_transport", "disk"),
    "broadcast_port": ("weight_transport", "disk"),
    "broadcast_backend": ("weight_transport", "disk"),
    "broadcast_join_s": ("weight_transport", "disk"),
    "broadcast_limit_s": ("weight_transport", "disk"),
    "lora_alpha": ("lora_rank", 0),
    "lora_target_modules": ("lora_rank", 0),
}


class TrainerConfig(ServiceConfig, LossConfig, Trainable, ComputeSettings):
    """The loss's settings are those of `LossConfig`; what is trained, those of `Trainable`; how, of `ComputeSettings`."""

    section: ClassVar[str] = "trainer"
    program: ClassVar[str] = "python -m trainer"

    # the run
    run: RunName = Field(description="Run name: the database that samplers and trainers of this run share.")
    db_connection_string: str = secret_field(description="MongoDB to use.")
    policy: PolicyName = Field(DEFAULT_POLICY, description="Which policy this job trains.")
    model_name_or_path: Path = Field(description="Hugging Face directory with the weights the run starts from.")
    output_dir: Path | None = Field(
        None, description="Checkpoints, versions, metrics. None: output/RUN, or output/RUN/POLICY where it is not main."
    )

    undo_later_steps: bool = Field(
        False,
        description="Begin before the run's newest checkpoint: later versions are withdrawn, later steps' records trained again.",
    )

    # data
    groups_per_step: Positive = Field(16, description="Groups (tasks) that one optimizer step consumes.")
    max_staleness: int = Field(
        2,
        ge=0,
        description="Steps that samplers may be ahead, so the mean staleness of data at most (of all of it, if stale_data is "
        "not keep); 0: synchronous.",
    )
    stale_data: StaleData = Field(
        StaleData.KEEP,
        description="Data of slow episodes is staler. keep: it trains, with its importance weights. wait: a step takes the "
        "oldest tasks and waits until they are played, which bounds staleness and costs time. mask (staler tokens have no "
        "loss) and drop (their group is set aside) select against slow episodes: docs/staleness.md has the figures.",
    )
    max_trained_count: Positive = Field(1, description="How often one record may be trained.")
    retrained_interval: Positive = Field(1, description="Steps from one use of a record to its next.")
    prefetch: bool = Field(True, description="Read, merge and pack the next step's groups while this one is computed.")
    data_run: RunName | None = Field(
        None,
        description="Train offline on what another run has recorded, max_trained_count times, until it is used up; nothing is "
        "written there. Its versions say nothing here: every token has staleness 0. None: on what this run's samplers record.",
    )
    data_db: str | None = secret_field(None, description="MongoDB of data_run. None: db_connection_string.")
    drop_zero_advantage: bool = Field(
        True, description="Spare the forward of records whose advantages are all 0: their gradient is 0 anyway."
    )
    minimal_advantage: float = Field(
        0.0,
        ge=0,
        description="Dispatches with an advantage between -this and this have no loss; records of nothing else are not "
        "forwarded. Denominators count them.",
    )
    skip_non_positive_advantage: bool = Field(
        False, description="The same for dispatches with an advantage of 0 or less: learn from what went well only."
    )
    advantage_normalization: str = Field(
        AdvantageNormalization.NONE,
        description="Over the step's batch: none, batch_std (divide by the rewards' standard deviation), source (mean 0 and "
        "standard deviation 1 over the trained tokens of each source), or one of your own that loss_modules registers.",
    )
    max_tokens_per_row: Positive = Field(1024, description="Token budget of one forward (micro-batch).")

    # loss (its other settings: trainer/losses/settings.py)
    preset: str | None = Field(None, description=f"Values to start from: {', '.join(PRESETS)}. Other settings win.")
    updates_per_step: Positive = Field(
        1, description="Optimizer updates per step, each on its own part of the step's groups."
    )
    reference_model: Path | None = Field(
        None,
        description="Frozen model of the KL term; loaded only when kl_coefficient > 0. None: model_name_or_path "
        "(with adapters it is there already, below them).",
    )

    # optimizer
    max_steps: Positive = Field(100, description="Optimizer steps of the whole run; it ends by itself then.")
    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    lr_schedule: Schedule = Field("constant", description="constant, linear or cosine.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="Floor of a falling schedule, as part of the peak.")
    weight_decay: float = Field(0.0, ge=0, description="Of matrices; norms are never decayed.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW.")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="AdamW.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip by global norm; 0: no clipping.")

    # evaluation
    eval_steps: int = Field(
        0, ge=0, description="Queue the held-out tasks (split eval) at the weights of every so many steps. 0: never."
    )

    # keeping
    save_steps: Positive = Field(10, description="Checkpoint every so many steps, and at the end.")
    keep_checkpoints: Positive = Field(2, description="Checkpoints to keep: the last ones.")
    keep_best_checkpoints: int = Field(
        0,
        ge=0,
        description="Keep those with the best held-out rewards too, so many (see eval_steps, a multiple of save_steps).",
    )
    async_checkpoints: bool = Field(
        True,
        description="Write checkpoints while the next steps are computed; needs host memory for one more copy of the state.",
    )
    keep_versions: Annotated[int, Field(ge=2)] = Field(
        4,
        description="Published versions to keep on disk, with what they are put together from; engines may still be loading "
        "the last ones.",
    )

    # publishing
    publish_mode: Literal["full", "delta", "adapter"] = Field(
        "full",
        description="Every version as a complete directory; as the changed bytes with a complete one now and then (delta); or as "
        "the adapter alone, which engines' keepers merge (adapter: needs lora_rank). docs/publishing.md says when that is less.",
    )
    full_every: Positive = Field(
        20, description="publish_mode delta: every so many versions is a complete directory too."
    )
    publish_dtype: Literal["bfloat16", "float32", "float64"] | None = Field(
        None, description="Of published weights: what engines serve. None: that of the parameters."
    )
    weight_transport: Literal["disk", "broadcast"] = Field(
        "disk",
        description="How engines get published weights: from disk, or, those that can, over the network. Every version is on "
        "disk in any case; docs/publishing.md says when which is better.",
    )
    broadcast_address: str | None = Field(
        None, description="This machine's address, as engines reach it. None: its host name."
    )
    broadcast_port: int = Field(
        0, ge=0, le=65535, description="Where engines meet for a broadcast (they also use others). 0: a free one."
    )
    broadcast_backend: Literal["gloo", "nccl"] | None = Field(
        None, description="What carries a broadcast. None: nccl where the trainer computes on a GPU, else gloo."
    )
    broadcast_join_s: float = Field(10.0, gt=0, description="How long an offer to engines is open at most.")
    broadcast_limit_s: float = Field(120.0, gt=0, description="How long one broadcast may take.")
    report_to: list[str] | None = Field(
        None,
        description="Trackers: tensorboard, wandb, swanlab, mlflow, trackio, none. None: tensorboard where installed. They are "
        "told these settings, and log as RUN, or as RUN-POLICY where it is not main.",
    )
    with_entropy: bool = Field(True, description="Measure the policy's entropy (one more pass over the logits).")
    log_level: LogLevel = Field("INFO", description="From which severity on messages are logged.")

    @model_validator(mode="before")
    @classmethod
    def a_preset_gives_what_is_not_set(cls, values: Any) -> Any:
        name = values.get("preset") if isinstance(values, dict) else None
        if name is None:
            return values
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset {shortened(name)} is unknown; expected one of {', '.join(PRESETS)}")
        return {**PRESETS[name].settings, **values}

    @model_validator(mode="after")
    def zero_advantages_mean_nothing_to_a_policy_gradient_only(self) -> "TrainerConfig":
        if not self.drop_zero_advantage:
            return self
        if self.loss_calculater is LossName.CROSS_ENTROPY:
            raise ValueError("CrossEntropy trains on every record: set drop_zero_advantage to false")
        names = ("kl_coefficient", "entropy_coefficient", "router_aux_loss_coef", "log_ratio_penalty")
        terms = [name for name in names if getattr(self, name) != 0]
        if terms and not (terms == ["log_ratio_penalty"] and self.loss_calculater is not LossName.DPPO):
            raise ValueError(
                f"{terms[0]} gives records without advantage a gradient too: set drop_zero_advantage to false"
            )
        return self

    @model_validator(mode="after")
    def a_normalization_is_registered(self) -> "TrainerConfig":
        require_normalization(self.advantage_normalization)
        return self

    @model_validator(mode="after")
    def every_update_has_a_group(self) -> "TrainerConfig":
        if self.updates_per_step > self.groups_per_step:
            raise ValueError(
                f"updates_per_step is {self.updates_per_step}; expected at most groups_per_step={self.groups_per_step}"
            )
        return self

    @model_validator(mode="after")
    def a_database_is_of_a_run(self) -> "TrainerConfig":
        if self.data_db is not None and self.data_run is None:
            raise ValueError("data_db says where a run's data is: set data_run, the name of that run")
        if self.data_run == self.run and self.data_db is None:
            raise ValueError(
                f"data_run is {self.data_run!r}, this run itself: its trainer marks what it uses; expected another run name"
            )
        return self

    @model_validator(mode="after")
    def the_best_checkpoints_are_of_steps_that_are_saved_and_judged(self) -> "TrainerConfig":
        if self.keep_best_checkpoints and (self.eval_steps == 0 or self.eval_steps % self.save_steps):
            raise ValueError(
                f"keep_best_checkpoints is {self.keep_best_checkpoints}, but eval_steps {self.eval_steps} and save_steps "
                f"{self.save_steps}; expected eval_steps to be a multiple of save_steps, so that what is judged is there to keep"
            )
        return self

    @model_validator(mode="after")
    def what_is_broadcast_is_complete(self) -> "TrainerConfig":
        if self.weight_transport == "broadcast" and self.publish_mode != "full":
            raise ValueError(
                f"weight_transport broadcast sends complete files; publish_mode is {self.publish_mode}, expected full"
            )
        return self

    @model_validator(mode="after")
    def an_adapter_is_published_of_what_has_one(self) -> "TrainerConfig":
        if self.publish_mode != "adapter":
            return self
        if not self.lora_rank:
            raise ValueError(
                "publish_mode adapter publishes the adapter: set lora_rank, or publish_mode to full or delta"
            )
        if self.publish_dtype:
            raise ValueError(
                f"publish_mode adapter leaves the frozen weights as they lie in model_name_or_path; publish_dtype is "
                f"{self.publish_dtype}, expected none"
            )
        return self

    def without_effect(self) -> dict[str, str]:
        """Preset values made moot by another setting are not reported."""
        given = PRESETS[self.preset].settings if self.preset is not None else {}
        found = super().without_effect() | unused(self, UNUSED)
        return {name: why for name, why in found.items() if getattr(self, name) != given.get(name)}

    @property
    def folder(self) -> Path:
        run = Path("output") / self.run
        return self.output_dir or (run if self.policy == DEFAULT_POLICY else run / self.policy)

    @property
    def tracked_as(self) -> str:
        """The name that trackers know this training by: each policy's trainer has its own."""
        return self.run if self.policy == DEFAULT_POLICY else f"{self.run}-{self.policy}"

    def loss(self) -> LossConfig:
        return LossConfig(**{name: getattr(self, name) for name in LossConfig.model_fields})

    def broadcast(self, device: torch.device) -> BroadcastSettings | None:
        """None: from disk alone."""
        if self.weight_transport == "disk":
            return None
        backend = self.broadcast_backend or ("nccl" if device.type == "cuda" else "gloo")
        return BroadcastSettings(
            address=self.broadcast_address or socket.gethostname(),
            port=self.broadcast_port,
            backend=backend,
            device=str(device) if backend == "nccl" else "cpu",
            join_s=self.broadcast_join_s,
            limit_s=self.broadcast_limit_s,
        )

    def optimizer(self) -> OptimizerConfig:
        names = OptimizerConfig.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return OptimizerConfig(**{name: getattr(self, name) for name in names})
