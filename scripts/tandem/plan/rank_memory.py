"""What one rank of a trainer on GPUs holds at most, by part, from a model's shape and a layout; without torch, before a start.

    states       weights, gradients and the optimizer's numbers of this rank: FSDP2 cuts the first dimension of each tensor over
                 ranks / tp_size, rounded up; of experts that they do not divide another one, evenly
    gathered     parameters put together in the type in which layers compute: embedding and head from their first use to the
                 end of the backward, a layer while it computes, the output of the next one's all-gather
    activations  what the forward saves for the backward
    logits       of a chunk, and the gradient of the head, a block of it in float32
    working      made by the backward: the gradients that are not reduced yet, the input of their reduce-scatter in float32,
                 a layer's temporaries; with activation_checkpointing the layer that is computed again

The step is walked through at the moments in which one of them is large (`moments`); the largest sum is the peak. Each formula is
what `scripts/bench/plan.py` found in the trainer's own code: `scripts/bench/fake_ranks.py` runs a rank with tensors without
memory. Not counted: the CUDA context, NCCL's own buffers, and what the allocator loses between blocks: `USABLE`
in `layouts.py`.
"""

from collections.abc import Iterator
from dataclasses import replace

from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, RankMemory, TrainedRow
from tandem.plan.rank_sizes import EXACT, RankSizes


def peak(shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow) -> RankMemory:
    """The largest of `moments`."""
    return max(moments(shape, layout, trained, row), key=lambda moment: moment.total)


def moments(shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow) -> Iterator[RankMemory]:
    """Those of a step in which a part is large, in their order."""
    parts = RankSizes(shape, layout, trained, row)
    states = parts.states()
    root, layer, prefetch = parts.root, parts.layer, parts.layer.padded * parts.u
    saved, head = parts.saved_of_layer, parts.saved_of_head
    inputs = parts.input_of_layer
    cast = root.local * parts.u if parts.u != parts.stored else 0  # this rank's part, in the type of the all-gather
    yield replace(
        states,
        moment="forward of the first layer",
        gathered=(2 * root.padded + layer.padded) * parts.u,
        activations=parts.u * parts.tokens * shape.hidden + cast,
    )
    # With checkpointed layers each keeps its input, and one of them is computed again.
    kept = inputs if row.checkpointing else saved
    held = root.padded * parts.u
    all_layers = shape.layers * kept
    yield replace(
        states,
        moment="backward of the head",
        gathered=held + prefetch,
        activations=all_layers + head,
        logits=parts.logits(),
    )
    ungathered = parts.root_gradient_bytes
    again = saved if row.checkpointing else 0
    of_input = parts.u * parts.tokens * shape.hidden
    for done in sorted({0, 1, 2, shape.layers - 1} & set(range(shape.layers))):  # layers whose gradients are reduced
        reducing = layer.trained_padded * EXACT if done else 0
        at_layer = replace(
            states,
            gradients=done * parts.reduced_of_layer,
            gathered=held + prefetch + (prefetch if done < shape.layers - 1 else 0),
            activations=(shape.layers - done) * kept,
        )
        backward = ungathered + again + parts.early_working() + reducing
        yield replace(at_layer, moment="backward of a layer", working=backward)
        reduced = ungathered + of_input + layer.trained_whole * parts.u + layer.trained_padded * EXACT
        yield replace(
            at_layer,
            moment="reduction of a layer",
            gathered=at_layer.gathered - prefetch,
            activations=(shape.layers - done - 1) * kept,
            working=reduced,
        )
    gradients = shape.layers * parts.reduced_of_layer
    if root.trained_whole:
        reduced = root.trained_whole * parts.u + root.trained_padded * EXACT
        yield replace(states, moment="reduction of the embedding", gradients=gradients, working=reduced)
    yield replace(states, moment="optimizer", gradients=gradients + parts.reduced_of_root, working=parts.optimizing())
