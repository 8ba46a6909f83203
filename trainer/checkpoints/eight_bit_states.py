"""8-bit optimizer states belong to a rank's shard: in a checkpoint their names say the rank."""

from collections.abc import Mapping
from typing import Any

from trainer.step.adamw_8bit import OF_A_SHARD


def named_by_rank(state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """`state`, flat by name, with the same tensors: reading into them fills the optimizer's."""
    return {
        f"{name}.rank-{rank}" if name.rpartition(".")[2] in OF_A_SHARD else name: value for name, value in state.items()
    }
