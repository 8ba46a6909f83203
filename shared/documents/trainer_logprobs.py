"""What the trainer computed for each token that a step trained."""

from datetime import datetime
from enum import IntFlag
from typing import ClassVar, Self

from pydantic import Field, model_validator

from shared.documents.base import Document


class TokenMark(IntFlag):
    """What the loss did with a token. Stored as one byte; 0: the token has no loss in this step."""

    HAS_LOSS = 1
    CLIPPED_HIGH = 2  # the advantage is positive, and the ratio above the clip range
    CLIPPED_LOW = 4  # the advantage is negative, and the ratio below the clip range
    TOKEN_MASKED = 8
    SEQUENCE_MASKED = 16


class TurnLogprobs(Document):
    """One turn's tokens, from the first to the last that has a loss. Packed: float32 and uint8, of the same length."""

    turn: int
    first: int  # place of the first one: tokens before it in its context
    logprobs: bytes  # of the weights that the step started from, at the sampling temperature; NaN: no loss
    marks: bytes  # `TokenMark`

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len(self.logprobs) != 4 * len(self.marks):
            raise ValueError(
                f"logprobs has {len(self.logprobs)} bytes; expected {4 * len(self.marks)}, 4 for each of marks"
            )
        return self


class TrainerLogprobs(Document):
    """A record's trained tokens in one step. In a step of several updates, each token's weights are those of its update.

    The engine's log-probs lie in the dispatches (`SampledResponse.output_logprobs`). `largest_difference` is
    max |trainer − engine| in nats, and `largest_turn`, `largest_place` where it is; infinity where a log-prob is no number.
    """

    collection: ClassVar[str] = "trainer_logprobs"

    id: str = Field(alias="_id")  # data:step:trainer_generation
    data: str  # the `DBRecordData`
    record: str
    policy: str
    step: int
    trainer_generation: int
    turns: list[TurnLogprobs]
    largest_difference: float
    largest_turn: int
    largest_place: int
    created_at: datetime | None = None


def trainer_logprobs_id(data: str, step: int, trainer_generation: int) -> str:
    return f"{data}:{step}:{trainer_generation}"
