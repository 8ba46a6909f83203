"""What is kept of a training, and what is measured and reported of it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shared.configuration.sections import Section
from shared.http.metrics_page import DESCRIPTION, Address

Positive = Annotated[int, Field(gt=0)]
Tracker = Literal["tensorboard", "wandb", "swanlab", "mlflow", "trackio", "none"]


class CheckpointSettings(Section):
    """When checkpoints are written and evaluated, and which are kept."""

    save_steps: Positive = Field(10, description="Steps between checkpoints; one more is written at the end.")
    eval_steps: int = Field(
        0, ge=0, description="Steps between evaluations on the held-out tasks (split eval). 0: no evaluation."
    )
    keep_checkpoints: Positive = Field(2, description="Checkpoints to keep: the last ones.")
    keep_best_checkpoints: int = Field(
        0,
        ge=0,
        description="Checkpoints to keep in addition: those with the best held-out rewards (eval_steps must be a multiple of "
        "save_steps).",
    )
    async_checkpoints: bool = Field(
        True,
        description="Write checkpoints while the next steps are computed; needs host memory for one more copy of the state.",
    )
    undo_later_steps: bool = Field(
        False,
        description="Begin before the run's newest checkpoint: later versions are withdrawn, later steps' records trained again.",
    )

    @model_validator(mode="after")
    def the_best_checkpoints_are_of_steps_that_are_saved_and_judged(self) -> Self:
        if self.keep_best_checkpoints and (self.eval_steps == 0 or self.eval_steps % self.save_steps):
            raise ValueError(
                f"keep_best_checkpoints is {self.keep_best_checkpoints}, but eval_steps {self.eval_steps} and save_steps "
                f"{self.save_steps}; expected eval_steps to be a multiple of save_steps, so that what is judged is there to keep"
            )
        return self


class ReportSettings(Section):
    """What is measured of the training, and where it is reported."""

    with_entropy: bool = Field(True, description="Measure the policy's entropy (one more pass over the logits).")
    keep_logprobs: bool = Field(
        True,
        description="Store the trainer's log-prob of each trained token, and whether the loss clipped or masked it, in "
        "`trainer_logprobs`: 5 bytes a token and step. The viewer shows them next to the engine's.",
    )
    metrics_address: Address | None = Field(None, description=f"{DESCRIPTION} Of several processes, rank 0.")
    report_to: list[Tracker] | None = Field(
        None,
        description="Trackers: tensorboard, wandb, swanlab, mlflow, trackio, none. None: tensorboard where installed. They are "
        "told these settings, and log as RUN, or as RUN-POLICY where it is not main.",
    )
