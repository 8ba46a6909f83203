"""The names of `advantage_normalization`, and the registry of a user's own; `trainer/data/advantages.py` computes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from shared.user_code.registry import FunctionRegistry


class AdvantageNormalization(StrEnum):
    NONE = "none"  # as settlement stored them
    BATCH_STD = "batch_std"  # one divisor for the whole batch
    SOURCE = "source"  # mean 0 and standard deviation 1 for the tokens of each source


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """One turn of the batch, of any rank: what a normalization of a user's own is a function of.

    `advantage` as settlement stored it; `reward` of its record, what was added included; `tokens` that are trained.
    """

    dispatch: str
    record: str
    task: str
    source: str
    reward: float
    advantage: float
    tokens: int


Normalization = Callable[[Sequence[BatchTurn]], Sequence[float]]
F = TypeVar("F", bound=Normalization)
NORMALIZATIONS: FunctionRegistry[Normalization] = FunctionRegistry(
    "advantage_normalization", modules="loss_modules", decorator="register_normalization"
)


def register_normalization(name: str) -> Callable[[F], F]:
    """Decorator, for a function of all turns of the batch, in the order of their ids, that gives each its advantage."""

    def register(function: F) -> F:
        NORMALIZATIONS.add(name, function)
        return function

    return register


def require_normalization(name: str) -> None:
    """Raises ConfigError for an unknown name."""
    NORMALIZATIONS.require(name, list(AdvantageNormalization))
