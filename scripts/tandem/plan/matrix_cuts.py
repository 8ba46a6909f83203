"""How the tensors of a model are cut: by tp_size or ep_size into a rank's part, and that by FSDP2 into shards."""

from dataclasses import dataclass

from tandem.plan.models import Matrix
from tandem.plan.planned_rank import Layout


@dataclass(frozen=True, slots=True)
class MatrixCuts:
    """All sizes are (rows, width)."""

    layout: Layout

    def is_spread(self, matrix: Matrix) -> bool:
        """By ep_size."""
        return self.layout.ep > 1 and matrix.second > 0

    def part(self, matrix: Matrix) -> tuple[int, int]:
        """Of this rank, by tp_size or by ep_size."""
        if self.is_spread(matrix):
            return matrix.rows // self.layout.ep, matrix.width
        tp = self.layout.tp
        return (
            -(-matrix.rows // tp) if matrix.cut == "rows" else matrix.rows,
            -(-matrix.width // tp) if matrix.cut == "columns" else matrix.width,
        )

    def shard(self, matrix: Matrix) -> tuple[int, int]:
        """Of this rank: `trainer/process/expert_sharding.py`."""
        (rows, width), shards = self.part(matrix), self.shards(matrix)
        return (rows, width // shards) if self.is_cut_inside(matrix) else (-(-rows // shards), width)

    def shards(self, matrix: Matrix) -> int:
        """Their number."""
        return self.layout.expert_shards if self.is_spread(matrix) else self.layout.shards

    def is_cut_inside(self, matrix: Matrix) -> bool:
        """Whether FSDP2 cuts another dimension than the first."""
        (rows, width), shards = self.part(matrix), self.shards(matrix)
        if not matrix.second or rows % shards == 0:
            return False
        return matrix.second % shards == 0 or width // matrix.second % shards == 0
