"""A stage of a model without the processes of the others."""

from types import SimpleNamespace
from typing import Any


def of_stage(number: int, size: int) -> Any:
    """A process of a pipeline, for what needs no messages."""
    return SimpleNamespace(pipeline=SimpleNamespace(peers=SimpleNamespace(rank=number, size=size)))
