"""What a row needs of the store besides tokens: images for the vision tower, and the experts that the engine chose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shared.documents.expert_array import Experts
from shared.store import Store
from shared.tokens.record_tree import RecordTree
from trainer.data.images import TowerImages, inputs_of, read_images
from trainer.modeling.forward import TreeLM
from trainer.trees.experts import check_routed
from trainer.trees.packing import Row, pack
from trainer.trees.tree import Merging, merge


@dataclass(frozen=True, slots=True)
class RowInputs:
    """Of some records, each by its digest."""

    images: TowerImages = field(default_factory=dict)
    experts: Mapping[str, Experts] = field(default_factory=dict)

    def rows(self, lm: TreeLM, trees: Sequence[RecordTree]) -> list[Row]:
        """All records in one row, or where the model takes no trees each path in its own. Raises DataError for experts that are
        not of this model."""
        if lm.replay is not None:
            for tree in trees:
                check_routed(
                    tree.record_id, [self.experts[span.stored.sha256] for span in tree.experts], lm.replay.shape
                )
        linear = not lm.way.trees
        merged = merge(trees, merging=Merging.LINEAR if linear else Merging.TREE, experts=self.experts)
        rows = pack([merged], max(merged.num_tree, 1), one_sequence_per_row=linear)
        return [row.with_pixels(partial(inputs_of, self.images)) for row in rows]


async def read_inputs(store: Store, trees: Sequence[RecordTree], model_directory: Path) -> RowInputs:
    """Of a few records, at once; the model's files are needed where they have images. Raises DataError and ConfigError."""
    named = {span.stored.sha256: span.stored for tree in trees for span in tree.experts}
    experts = await store.routed_experts.read(list(named.values())) if named else {}
    return RowInputs(await read_images(store, trees, model_directory), experts)
