"""What the trainer computed for a turn's tokens, next to what the engine computed, for the page of tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shared.documents.packed import unpack_floats
from shared.documents.run import survives
from shared.documents.trainer_logprobs import TokenMark, TurnLogprobs
from shared.store.views.query import Document

MOST_LOG_RATIO = 20.0
WORDS = {
    TokenMark.CLIPPED_HIGH: "clipped: the ratio is above the range",
    TokenMark.CLIPPED_LOW: "clipped: the ratio is below the range",
    TokenMark.TOKEN_MASKED: "masked by its own mismatch",
    TokenMark.SEQUENCE_MASKED: "masked by its sequence's mismatch",
}
NOT_TRAINED = "no step has trained this turn"
NOT_STORED = (
    "not stored for this step: the trainer ran with keep_logprobs false, as an earlier version, or was killed just after the "
    "step. The means are in the step's metrics; tandem verify --run RUN recomputes log-probs with the weights that "
    "sampled"
)


@dataclass(frozen=True, slots=True)
class TrainedToken:
    """A token in one step. `difference`: trainer − engine, in nats; `ratio`: its exponential, trainer to engine."""

    step: int
    logprob: float
    difference: float | None
    ratio: float | None
    marks: list[str]


@dataclass(frozen=True, slots=True)
class StepTokens:
    first: int
    logprobs: list[float]
    marks: bytes


@dataclass(frozen=True, slots=True)
class TrainedTurn:
    """The turn in each step that is part of the weights and stored its log-probs."""

    by_step: dict[int, StepTokens]

    def at(self, place: int, engine_logprob: float | None) -> list[TrainedToken]:
        """The token with `place` tokens before it in its context, by step."""
        trained = []
        for step, turn in self.by_step.items():
            index = place - turn.first
            if not 0 <= index < len(turn.marks) or not turn.marks[index]:
                continue
            logprob = turn.logprobs[index]
            difference = None if engine_logprob is None else logprob - engine_logprob
            ratio = None if difference is None else math.exp(max(-MOST_LOG_RATIO, min(MOST_LOG_RATIO, difference)))
            marks = [words for mark, words in WORDS.items() if turn.marks[index] & mark]
            trained.append(TrainedToken(step, logprob, difference, ratio, marks))
        return trained


def trained_turn(documents: Sequence[Document], steps: Sequence[int], starts: Sequence[int]) -> TrainedTurn:
    """Of the documents that are part of the weights: of `steps`, and of a start of the trainer that no resume undid."""
    by_step = {
        document["step"]: _unpacked(TurnLogprobs.model_validate(document["turns"][0]))
        for document in documents
        if document.get("turns")
        and document["step"] in steps
        and survives(document["step"], document["trainer_generation"], starts)
    }
    return TrainedTurn(dict(sorted(by_step.items())))


def _unpacked(turn: TurnLogprobs) -> StepTokens:
    return StepTokens(turn.first, unpack_floats(turn.logprobs).tolist(), turn.marks)
