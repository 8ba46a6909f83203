"""Protections of layouts: experts spread over processes, rows shared by them, slices of rows between the blocks of a layer."""

from tests.mutant_rows.mutant import Mutant

SPREAD, WINDOWS = "tests/trainer/test_expert_parallel.py", "tests/trainer/test_windows.py"
SHARDS = "tests/trainer/test_expert_shards.py"
SLICED = "tests/trainer/test_sequence_parallel.py"
SEQUENCE, ROW_SLICES = "trainer/modeling/sequence_parallel.py", "trainer/modeling/row_slices.py"
IN_SLICES = f"{SLICED}::test_slices_whose_experts_are_on_other_processes_have_the_gradient_of_one"
LONG_ROWS = f"{SPREAD}::test_slices_of_long_rows_are_balanced_and_repeat_an_engines_choices_as_one_process_does"
ANY_LENGTH = f"{SLICED}::test_rows_of_any_length_have_the_gradient_of_one_process"
MODULE, SLICES = "trainer/modeling/expert_parallel.py", "trainer/modeling/context_parallel.py"
REFUSED = f"{SPREAD}::test_models_and_processes_over_which_no_experts_can_be_spread_are_refused"
TOKENS = f"{SPREAD}::test_tokens_reach_their_experts_and_gradients_come_back"

MUTANTS = (
    Mutant(
        "experts and windows: experts are split evenly or not at all",
        MODULE,
        "        _check(name, module, model, line.size())\n",
        "",
        REFUSED,
    ),
    Mutant(
        "experts and windows: a model without a plan for its experts is not spread",
        MODULE,
        "    if not spread and (parallel.pipeline is None or not _has_plan(model)):",
        "    if False:",
        REFUSED,
    ),
    Mutant(
        "experts and windows: processes have a multiple of ep_size",
        "trainer/process/parallel.py",
        "    if world_size % (sizes.ep * sizes.pp):\n",
        "    if False:\n",
        REFUSED,
    ),
    Mutant(
        "experts and windows: gradients of experts are means over as many processes as all others",
        MODULE,
        "        return grad * ctx.factor, None\n",
        "        return grad, None\n",
        TOKENS,
    ),
    Mutant(
        "experts and windows: processes that share a layer send each token once",
        MODULE,
        "        if self.layer is None:\n",
        "        if True:\n",
        f"{SLICED}::test_experts_on_other_processes_get_whole_rows_where_a_model_needs_them",
    ),
    Mutant(
        "experts and windows: experts are cut by rows where fewer are held than share them",
        "trainer/process/expert_sharding.py",
        '"mesh": same, "shard_placement_fn": placement}',
        '"mesh": same, "shard_placement_fn": None}',
        f"{SPREAD}::test_a_process_holds_its_experts_and_those_with_the_same_ones_share_them",
    ),
    Mutant(
        "experts and windows: experts that the shards do not divide are cut inside",
        "trainer/process/expert_sharding.py",
        "        return Shard(even[0] if",
        "        return Shard(0 if",
        f"{SHARDS}::test_experts_that_the_processes_do_not_divide_are_cut_by_rows",
    ),
    Mutant(
        "experts and windows: of experts that tp_size has cut, the own part is cut",
        "trainer/process/expert_sharding.py",
        "parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape",
        "parameter.shape",
        f"{SHARDS}::test_experts_that_tp_size_has_cut_are_cut_by_rows_over_the_data",
    ),
    Mutant(
        "experts and windows: adafactor steps a matrix with fewer rows than shards",
        "trainer/step/adafactor.py",
        "    return update.redistribute(placements=parameter.placements)\n",
        "    return update\n",
        f"{SHARDS}::test_optimizers_step_them_as_one_process_does",
    ),
    Mutant(
        "experts and windows: slices of rows are measured against whole rows",
        "trainer/modeling/forward.py",
        "        return self.context if over_slices(self.way.attention) else None\n",
        "        return self.context\n",
        f"{WINDOWS}::test_a_window_longer_than_what_is_measured_is_applied_in_longer_rows",
    ),
    Mutant(
        "experts and windows: a window is applied to the row",
        SLICES,
        "(query_Q - key_K < window)",
        "(query_Q - key_K < 2 * window)",
        f"{WINDOWS}::test_a_window_longer_than_what_is_measured_is_applied_in_longer_rows",
    ),
    Mutant(
        "experts and windows: a window that no layer passes on is refused",
        SLICES,
        "    if passed != expected:\n",
        "    if False:\n",
        f"{WINDOWS}::test_a_window_that_a_layer_does_not_pass_to_its_attention_is_refused",
    ),
    Mutant(
        "experts and windows: no window in a tree",
        SLICES,
        "    if window is not None and (attention_mask is not None or inner",
        "    if window is not None and (inner",
        f"{WINDOWS}::test_no_window_is_applied_to_a_tree",
    ),
    Mutant(
        "sequence parallel: a bias after a sum over processes is added once",
        SEQUENCE,
        'tensors["bias"] * 0',
        'tensors["bias"] * 1',
        ANY_LENGTH,
    ),
    Mutant(
        "sequence parallel: gradients of norms are added over the slices",
        SEQUENCE,
        "Partial() if placement == Replicate() else placement",
        "placement",
        ANY_LENGTH,
    ),
    Mutant(
        "sequence parallel: gradients of a gathered row are summed",
        ROW_SLICES,
        "        return _scattered(grad_N, ctx.line, summed=ctx.summed), None, None, None\n",
        "        return _scattered(grad_N, ctx.line, summed=False), None, None, None\n",
        ANY_LENGTH,
    ),
    Mutant(
        "sequence parallel: a row that the processes do not divide is padded",
        ROW_SLICES,
        "    if missing:\n",
        "    if False:\n",
        ANY_LENGTH,
    ),
    Mutant(
        "sequence parallel: scalars of an activation see the units of one process",
        SEQUENCE,
        "if of.numel() == 1}",
        "if False}",
        ANY_LENGTH,
    ),
    Mutant(
        "sequence parallel: a gathered row is not kept for the backward",
        ROW_SLICES,
        "        if slices is None or not (",
        "        if True or not (",
        f"{SLICED}::test_a_process_keeps_half_of_what_one_keeps",
    ),
    Mutant(
        "sequence parallel: dropped hidden states stay whole",
        SEQUENCE,
        "    if layers is None or drops or not",
        "    if layers is None or not",
        f"{SLICED}::test_models_that_need_whole_rows_get_them",
    ),
    Mutant(
        "sequence parallel: a model that is no chain of layers gets whole rows",
        SEQUENCE,
        " or not is_chain(model):",
        ":",
        f"{SLICED}::test_models_that_need_whole_rows_get_them",
    ),
    Mutant(
        "experts in slices: each process sends its own tokens, not a part of them",
        SEQUENCE,
        "replace(experts.forward, layer=None)",
        "experts.forward",
        IN_SLICES,
    ),
    Mutant(
        "experts in slices: gradients of routers are added over the slices",
        SEQUENCE,
        "        of_child: Mapping[str, Placement] | None = {key: Replicate() for key, _ in module.named_parameters()}\n",
        "        of_child: Mapping[str, Placement] | None = {}\n",
        IN_SLICES,
    ),
    Mutant(
        "experts in slices: tokens of the padding are not routed",
        SEQUENCE,
        "            return x[:, : here.stop - here.start]\n",
        "            return x\n",
        f"{SLICED}::test_each_process_routes_the_tokens_of_its_slice_alone",
    ),
    Mutant(
        "experts in slices: a shared expert is cut",
        SEQUENCE,
        "        if inside:\n            of_child, blocks[child]",
        "        if False:\n            of_child, blocks[child]",
        f"{SLICED}::test_four_processes_spread_experts_of_a_row_that_they_do_not_divide",
    ),
    Mutant(
        "experts in slices: a block that gets more than hidden states gets whole rows",
        SEQUENCE,
        "    if len(inspect.signature(block.forward).parameters) != 1:\n",
        "    if False:\n",
        f"{SLICED}::test_experts_on_other_processes_get_whole_rows_where_a_model_needs_them",
    ),
    Mutant(
        "experts in slices: tokens of all slices balance the experts",
        "trainer/modeling/forward.py",
        "        return routing if routing is None or self._routers_line is None else",
        "        return routing if True else",
        LONG_ROWS,
    ),
    Mutant(
        "experts in slices: routers repeat the choices of their slice",
        "trainer/modeling/forward.py",
        "        return slice(first + own.start, first + own.stop)\n",
        "        return slice(first, first + own.stop - own.start)\n",
        LONG_ROWS,
    ),
    Mutant(
        "experts in slices: replayed choices are counted over the slices",
        "trainer/modeling/forward.py",
        "        return counts if line is None else added_up(counts, line)\n",
        "        return counts\n",
        LONG_ROWS,
    ),
    Mutant(
        "tensor parallel: a plan with two sums in a block is refused",
        "trainer/modeling/tensor_parallel.py",
        "    if size > 1 and twice:\n",
        "    if False:\n",
        "tests/trainer/test_layouts.py::test_a_plan_with_two_sums_in_a_block_is_refused_before_weights_are_read",
    ),
    Mutant(
        "experts in slices: a plan counts what the backward gathers again",
        "scripts/tandem/plan/roofline.py",
        "    of_block = 2 * passes + 1\n",
        "    of_block = 2 * passes\n",
        "tests/tandem/plan/test_gpu_plan.py::test_the_backward_gathers_a_row_once_more_and_experts_over_ep_size_gather_none",
    ),
    Mutant(
        "tensor parallel: eager experts are refused",
        "trainer/modeling/tensor_parallel.py",
        "        _check_kernel(model, mesh.size())\n",
        "        pass\n",
        "tests/trainer/test_layouts.py::test_experts_and_plans_that_cannot_be_shared_out_are_refused",
    ),
)
