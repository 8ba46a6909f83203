"""What of a model is trained: all of it, all but what is frozen, or adapters. `trainer/modeling/trainable.py` does it."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from shared.configuration.sections import Section

EVERY_LINEAR = "all-linear"


class LoraSettings(Section):
    """Low-rank adapters, which are trained instead of the model itself."""

    switch: ClassVar = ("lora_rank", 0)

    lora_rank: int = Field(
        gt=0, description="Train adapters of this rank instead of the model; 0, or no section: the model itself."
    )
    lora_alpha: float = Field(32.0, gt=0, description="The adapters' part is scaled by lora_alpha / lora_rank.")
    use_rslora: bool = Field(
        False, description="Scale by lora_alpha / √lora_rank instead, which large ranks need (rsLoRA)."
    )
    use_dora: bool = Field(
        False,
        description="Train the length of each row of a matrix apart from its direction (DoRA). Engines get merged weights: "
        "none loads such adapters.",
    )
    lora_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of an adapter's inputs that a step leaves out: in supervised training (sft) alone, by sequence.",
    )
    base_quantization: Literal["none", "nf4"] = Field(
        "none",
        description="nf4: hold the frozen layers in 4 bits (QLoRA); the model must be one that `tandem quantize` has written.",
    )
    lora_target_modules: list[str] = Field(
        [EVERY_LINEAR],
        description='Linear layers that get an adapter, by the end of their names: ["q_proj", "v_proj"]; all-linear: '
        "all but the head.",
    )

    @model_validator(mode="after")
    def some_layer_gets_an_adapter(self) -> Self:
        if not self.lora_target_modules:
            raise ValueError(f"lora_target_modules is empty; expected names of layers, or {EVERY_LINEAR}")
        return self


class TrainedParts(Section):
    """What of a model is trained: all but what is frozen, or adapters of it."""

    freeze: list[str] = Field(
        [], description='Parameters that are not trained, by patterns of their names: ["model.embed_tokens.*"].'
    )
    train_vision: bool = Field(
        False,
        description="Train, or adapt, a vision-language model's tower and projector too; false: its language model alone.",
    )
    lora: LoraSettings | None = None

    @model_validator(mode="after")
    def adapters_leave_nothing_to_freeze(self) -> Self:
        if self.lora and self.freeze:
            raise ValueError(
                "lora_rank freezes the whole model already; leave freeze out, and choose layers by lora_target_modules"
            )
        return self


class Trainable(TrainedParts):
    """What a model is loaded with; a checkpoint keeps it. Adapters begin as `seed` says."""

    seed: int = 0


EVERYTHING = Trainable()
