"""What one rank of a trainer on GPUs holds at most, by part, from a model's shape and a layout; without torch, before a start.

    states       weights, gradients and the optimizer's numbers of this rank: FSDP2 cuts the first dimension of each tensor over
                 ranks / tp_size, rounded up; of experts that they do not divide another one, evenly
    gathered     parameters put together in the type in which layers compute: embedding and head from their first use to the
                 end of the backward, a layer while it computes, the output of the next one's all-gather
    activations  what the forward saves for the backward
    logits       of a chunk, and the gradient of the head, a block of it in float32
    working      made by the backward: the gradients that are not reduced yet, the input of their reduce-scatter in float32,
                 a layer's temporaries, the last norm's in float32; with activation_checkpointing the layer that is computed again

Of several rows in a step all but the last leave whole gradients, in float32: 4 bytes for each parameter of the stage, by tp_size
and ep_size. With reduce_each_row only this rank's part of them stays.
With stages the first holds the activations of as many rows as there are stages, and the embedding, the last the head; experts by
ep_size are gathered and reduced apart from their layer.

The step is walked through at the moments in which one of them is large (`moments`); the largest sum is the peak. Each formula is
what `scripts/bench/plan.py` found in the trainer's own code: `scripts/bench/fake_ranks.py` runs a rank with tensors without
memory. Not counted: the CUDA context, NCCL's own buffers, and what the allocator loses between blocks: `USABLE`
in `layouts.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, RankMemory, TrainedRow
from tandem.plan.rank_parameters import EXACT, RankParameters
from tandem.plan.row_sizes import RowSizes


def peak(
    shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, stage: int | None = None
) -> RankMemory:
    """The largest of `moments`, of a stage, or by default of the one that holds most."""
    # Stages between the second and the last have fewer rows in flight, and no end of the model.
    stages = sorted({0, min(1, layout.pp - 1), layout.pp - 1}) if stage is None else [stage]
    every = (moment for one in stages for moment in moments(shape, layout, trained, row, one))
    return max(every, key=lambda moment: moment.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A row's backward. `in_flight`: rows whose activations a stage holds, with this one. `follows`: rows were before it, whose
    gradients are there. `forwards`: a forward comes between it and the one before. `is_last`: of the step, so that gradients are
    reduced."""

    in_flight: int
    follows: bool
    forwards: bool
    is_last: bool


def _turns(layout: Layout, row: TrainedRow, stage: int) -> Iterator[_Turn]:
    """Those of 1F1B that differ: with most rows in flight, then with one fewer, then the last."""
    ahead = layout.pp - stage
    most = min(ahead, row.rows)
    if row.rows > 1:
        follows = row.rows > ahead
        yield _Turn(in_flight=most, follows=follows, forwards=follows, is_last=False)
        if most > 2:
            yield _Turn(in_flight=most - 1, follows=True, forwards=False, is_last=False)
    yield _Turn(in_flight=1, follows=row.rows > 1, forwards=ahead == 1, is_last=True)


def moments(
    shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, stage: int = 0
) -> Iterator[RankMemory]:
    """Those of a step in which a part is large, in their order."""
    parts, made = RankParameters(shape, layout, trained, row, stage), RowSizes(shape, layout, trained, row, stage)
    states, root = parts.states(), parts.root
    if parts.is_first:
        yield states.at(
            "forward of the first layer",
            gathered=(2 * root.padded + parts.layer.padded + parts.experts.padded) * parts.u,
            activations=parts.u * made.tokens * shape.hidden + parts.cast_of_root,
        )
    for turn in _turns(layout, row, stage):
        yield from _of_backward(parts, made, turn)
    gradients = parts.layers * parts.reduced_of_layer + parts.reduced_of_root
    yield states.at("optimizer", gradients=gradients, working=parts.optimizing())


def _of_backward(parts: RankParameters, made: RowSizes, turn: _Turn) -> Iterator[RankMemory]:
    """With checkpointed layers each keeps its input, and one of them is computed again."""
    states, row, layer, layers = parts.states(), parts.row, parts.layer, parts.layers
    saved, prefetch, held = made.saved_of_layer, layer.padded * parts.u, parts.root.padded * parts.u
    kept = made.input_of_layer if row.checkpointing else saved
    waiting = (turn.in_flight - 1) * (layers * kept + made.passed_on) + (made.sent_back if turn.follows else 0)
    unreduced = layers * parts.unreduced_of_layer + parts.unreduced_of_root if turn.follows else 0
    # Of a row before: with reduce_each_row gradients are there, reduced; else none is until the last row.
    before = layers * parts.reduced_of_layer + parts.reduced_of_root if turn.follows and row.reduces_each else 0
    reduces = turn.is_last or row.reduces_each
    if turn.follows:  # freed after the last backward
        yield states.at(
            "gathering of the embedding",
            gradients=before,
            gathered=2 * held + prefetch,
            activations=waiting + parts.cast_of_root + (0 if turn.forwards else layers * kept + made.passed_on),
            working=unreduced,
        )
    again = saved if row.checkpointing else 0
    last_gathered = max(prefetch, parts.experts.padded * parts.u)  # whose output stays until the next one
    if parts.experts.whole and (turn.forwards or not turn.follows):
        yield states.at(
            "forward of the last layer",
            gradients=before,
            gathered=held + prefetch + 2 * parts.experts.padded * parts.u,
            activations=waiting + layers * kept + again + made.received,
            working=unreduced + made.forward_of_results,
        )
    yield states.at(
        "backward of the head",
        gradients=before,
        gathered=held + last_gathered,
        activations=waiting + layers * kept + made.saved_of_head,
        logits=made.logits if parts.is_last else 0,
        working=unreduced,
    )
    if parts.is_last:
        yield states.at(
            "backward of the last norm",
            gradients=before,
            gathered=held + prefetch,
            activations=waiting + layers * kept + made.received + made.slice * parts.shape.hidden * EXACT,
            working=unreduced + parts.root_gradient_bytes + made.backward_of_norm,
        )
    of_input, whole_of_layer = parts.u * made.tokens * parts.shape.hidden, parts.unreduced_of_layer
    of_layer = parts.reduced_of_layer if reduces else 0
    input_of_sum, left = parts.reducing(layer) if reduces else 0, made.saved_of_attention
    of_experts = parts.experts.trained_whole * parts.u + parts.reducing(parts.experts) * reduces
    # layers whose gradients are there; the last one has no next one that is gathered meanwhile
    for done in sorted({0, 1, 2, layers - 2, layers - 1} & set(range(layers))):
        gone = done * whole_of_layer
        summed = max(0, unreduced - gone) if turn.is_last else unreduced if turn.follows else gone
        summed += parts.root_gradient_bytes
        gradients, gathered = before or done * of_layer, held + prefetch + (prefetch if done < layers - 1 else 0)
        activations = waiting + made.given_back + (layers - done) * kept
        yield states.at(
            "backward of a layer",
            gradients=gradients,
            gathered=gathered + parts.experts.padded * parts.u,
            activations=activations,
            working=summed + again + made.early_working + (input_of_sum if done else 0),
        )
        if parts.experts.whole:
            yield states.at(
                "reduction of the experts",
                gradients=gradients,
                gathered=gathered,
                activations=activations - (0 if row.checkpointing else kept - left),
                working=summed + of_input + (left if row.checkpointing else 0) + of_experts,
            )
        # In float32; the layer's own gradients exist at the same time.
        first_sum = 0 if reduces or turn.follows else whole_of_layer
        yield states.at(
            "reduction of a layer",
            gradients=gradients,
            gathered=gathered - prefetch,
            activations=activations - kept,
            working=summed + first_sum + of_input + layer.trained_whole * parts.u + input_of_sum,
        )
    root = parts.root
    if root.trained_whole:
        added = parts.reduced_of_root if before else 0  # what this row adds to the sum of those before
        whole = added + parts.unreduced_of_root * turn.follows
        whole += 0 if turn.is_last else layers * parts.unreduced_of_layer + parts.unreduced_of_root * (not turn.follows)
        yield states.at(
            "reduction of the embedding",
            gradients=before or (layers * parts.reduced_of_layer if reduces else 0),
            activations=waiting + made.given_back,
            working=whole + root.trained_whole * parts.u + (parts.reducing(root) if reduces else 0),
        )
