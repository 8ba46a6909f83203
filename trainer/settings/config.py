"""The trainer's configuration: `python -m trainer --help` prints it."""

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from shared.configuration.loading import LogLevel, ServiceConfig
from shared.configuration.secrets import secret_field
from shared.configuration.sections import flat_values, flattened
from shared.names import DEFAULT_POLICY, PolicyName, RunName, shortened
from trainer.settings.checkpoint import CheckpointSettings, ReportSettings
from trainer.settings.data import DataSettings
from trainer.settings.ineffective import unused
from trainer.settings.loss import LossConfig, LossName
from trainer.settings.memory import MemorySettings
from trainer.settings.model import ModelSettings, ParallelSettings
from trainer.settings.normalizations import require_normalization
from trainer.settings.optimizer import OptimizerSettings
from trainer.settings.presets import PRESETS
from trainer.settings.publish import PublishSettings
from trainer.settings.sharing import SharingSettings

UNUSED = {  # settings that do nothing while another one has this value
    "min_lr_ratio": ("lr_schedule", "constant"),
    "retrained_interval": ("max_trained_count", 1),
    "full_every": ("publish_mode", "full"),
    "broadcast_address": ("weight_transport", "disk"),
    "broadcast_port": ("weight_transport", "disk"),
    "broadcast_join_s": ("weight_transport", "disk"),
    "broadcast_limit_s": ("weight_transport", "disk"),
    "device_lease_s": ("shared_device", None),
}


class TrainerConfig(ServiceConfig):
    """One training job: its run and policy, and a section of settings for each part of the work."""

    section: ClassVar[str] = "trainer"
    program: ClassVar[str] = "python -m trainer"
    about: ClassVar[str] = (
        "Trains a policy of a run on what its samplers settle, and publishes the weights that engines follow."
    )
    usage: ClassVar[str] = "--run RUN --model_name_or_path DIR [--config FILE.yml] [--setting value ...]"
    example: ClassVar[str] = (
        "tandem trainer --num_processes 8 --run my_run --config assets/minirl.yml --model_name_or_path Qwen/Qwen3-4B"
    )
    most_set: ClassVar[tuple[str, ...]] = (
        *(
            "run",
            "db_connection_string",
            "config",
            "preset",
            "model_name_or_path",
            "output_dir",
            "max_steps",
            "learning_rate",
            "lr_schedule",
            "warmup_steps",
            "groups_per_step",
            "max_staleness",
            "stale_data",
            "max_tokens_per_row",
            "loss",
            "epsilon",
            "epsilon_higher",
            "kl_coefficient",
            "lora_rank",
            "dtype",
            "activation_checkpointing",
            "tp_size",
            "cp_size",
            "pp_size",
            "ep_size",
            "save_steps",
            "eval_steps",
            "publish_mode",
            "report_to",
            "log_level",
        ),
    )

    run: RunName = Field(description="Run name: the database that samplers and trainers of this run share.")
    db_connection_string: str = secret_field(description="MongoDB to use.")
    policy: PolicyName = Field(DEFAULT_POLICY, description="Which policy this job trains.")
    output_dir: Path | None = Field(
        None, description="Checkpoints, versions, metrics. None: output/RUN, or output/RUN/POLICY where it is not main."
    )
    preset: str | None = Field(
        None,
        description=f"Values to start from: {', '.join(PRESETS)}. Other settings win. None: the defaults, which are minirl's.",
    )
    seed: int = Field(0, ge=0, description="Seed of all randomness in the trainer.")
    log_level: LogLevel = Field("INFO", description="Lowest severity that is logged.")

    model: ModelSettings
    memory: MemorySettings = MemorySettings()
    parallel: ParallelSettings = ParallelSettings()
    sharing: SharingSettings = SharingSettings()
    data: DataSettings = DataSettings()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerSettings = OptimizerSettings()
    publish: PublishSettings = PublishSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    report: ReportSettings = ReportSettings()

    @model_validator(mode="before")
    @classmethod
    def a_preset_gives_what_is_not_set(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("preset") is None:
            return values
        name = values["preset"]
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset {shortened(name)} is unknown; expected one of {', '.join(PRESETS)}")
        return {**PRESETS[name].settings, **flattened(cls, values)}

    @model_validator(mode="after")
    def zero_advantages_mean_nothing_to_a_policy_gradient_only(self) -> Self:
        if not self.data.drop_zero_advantage:
            return self
        if self.loss.loss is LossName.CROSS_ENTROPY:
            raise ValueError("CrossEntropy trains on every record: set drop_zero_advantage to false")
        names = ("kl_coefficient", "entropy_coefficient", "router_aux_loss_coef", "log_ratio_penalty")
        terms = [name for name in names if flat_values(self)[name] != 0]
        if terms and not (terms == ["log_ratio_penalty"] and self.loss.loss is not LossName.DPPO):
            raise ValueError(
                f"{terms[0]} gives records without advantage a gradient too: set drop_zero_advantage to false"
            )
        return self

    @model_validator(mode="after")
    def a_normalization_is_registered(self) -> Self:
        require_normalization(self.data.advantage_normalization)
        return self

    @model_validator(mode="after")
    def the_data_of_this_very_run_comes_from_elsewhere(self) -> Self:
        offline = self.data.offline
        if offline and offline.data_run == self.run and offline.data_db is None:
            raise ValueError(
                f"data_run is {self.run!r}, this run itself: its trainer marks what it uses; expected another run name"
            )
        return self

    @model_validator(mode="after")
    def an_adapter_is_published_of_what_has_one(self) -> Self:
        if self.publish.publish_mode != "adapter":
            return self
        if not self.model.lora:
            raise ValueError(
                "publish_mode adapter publishes the adapter: set lora_rank, or publish_mode to full or delta"
            )
        if self.publish.publish_dtype:
            raise ValueError(
                f"publish_mode adapter leaves the frozen weights as they lie in model_name_or_path; publish_dtype is "
                f"{self.publish.publish_dtype}, expected none"
            )
        return self

    @model_validator(mode="after")
    def what_engines_sampled_is_computed_whole(self) -> Self:
        if self.model.lora and self.model.lora.lora_dropout:
            raise ValueError(
                f"lora_dropout is {self.model.lora.lora_dropout:g}; expected 0 in reinforcement learning: log-probs of an "
                "adapter with inputs left out are compared with those of the engine, which leaves none out, and their ratio "
                "would be noise. Supervised training (tandem sft) has it"
            )
        return self

    @model_validator(mode="after")
    def engines_that_sleep_receive_no_broadcast(self) -> Self:
        if self.sharing.shared_device is not None and self.publish.transport.weight_transport == "broadcast":
            raise ValueError(
                "shared_device: engines sleep while weights are published; weight_transport is broadcast, expected disk"
            )
        return self

    def without_effect(self) -> dict[str, str]:
        """Preset values made moot by another setting are not reported."""
        given = PRESETS[self.preset].settings if self.preset is not None else {}
        reasons, values = self.loss.without_effect() | unused(self, UNUSED), flat_values(self)
        return {name: why for name, why in reasons.items() if values[name] != given.get(name)}

    @property
    def folder(self) -> Path:
        run = Path("output") / self.run
        return self.output_dir or (run if self.policy == DEFAULT_POLICY else run / self.policy)

    @property
    def tracked_as(self) -> str:
        """The name that trackers know this training by: each policy's trainer has its own."""
        return self.run if self.policy == DEFAULT_POLICY else f"{self.run}-{self.policy}"
