"""Stages of a pipeline: gradients, norms, the schedule, checkpoints, what rank 0 writes, and what is refused."""

from tests.mutant_rows.mutant import Mutant

TEST, CUT_TEST = "tests/trainer/test_pipeline.py", "tests/trainer/test_pipeline_cut.py"
TIED = f"{TEST}::test_two_stages_with_a_tied_matrix_train_the_parameters_of_one_process_and_each_continues_the_other"
ADAPTER = "tests/trainer/test_adapters_in_stages.py::test_an_adapter_from_stages_is_that_of_one_process"
STAGES = "trainer/modeling/pipeline_parallel.py"

MUTANTS = (
    Mutant(
        "pipeline: tied matrices have the sum of both gradients",
        STAGES,
        "    own.add_(other)\n",
        "    del other\n",
        TIED,
    ),
    Mutant(
        "pipeline: a gradient that two stages have counts once",
        "trainer/step/learner.py",
        " and p is not elsewhere]",
        "]",
        TIED,
    ),
    Mutant(
        "pipeline: the norm is that of all stages",
        "trainer/step/learner.py",
        "return norm if pipeline is None else math.sqrt(pipeline.peers.sum_scalars([norm * norm])[0])",
        "return norm",
        TIED,
    ),
    Mutant(
        "pipeline: a checkpoint has the parameters of all stages",
        "trainer/checkpoints/restore.py",
        "    stages = [own] if parallel.pipeline is None else parallel.pipeline.peers.gather_objects(own)\n",
        "    stages = [own]\n",
        TIED,
    ),
    Mutant(
        "pipeline: a stage without trained parameters continues",
        "trainer/checkpoints/restore.py",
        "    if learner.optimizers:  #",
        "    if True:  #",
        f"{TEST}::test_a_stage_may_have_nothing_to_train",
    ),
    Mutant(
        "pipeline: activations of few rows are held",
        "trainer/modeling/pipeline.py",
        "        ahead = min(peers.size - peers.rank - 1, len(rows))\n",
        "        ahead = len(rows)\n",
        f"{TEST}::test_a_stage_holds_its_own_layers_and_the_activations_of_few_rows",
    ),
    Mutant(
        "pipeline: stages are balanced with embedding and head",
        "shared/weights/stage_starts.py",
        "ends = (first if stage == 1 else Cost(0, 0)).plus(last if stage == stages else Cost(0, 0))",
        "ends = Cost(0, 0)",
        f"{CUT_TEST}::test_the_slowest_stage_is_as_fast_and_then_the_largest_as_small_as_can_be",
    ),
    Mutant(
        "pipeline: of equally fast cuts the one with the smallest stages is made",
        "shared/weights/stage_starts.py",
        "    return smallest(1, slowest)[1]\n",
        "    return smallest(0, slowest)[1]\n",
        f"{CUT_TEST}::test_the_slowest_stage_is_as_fast_and_then_the_largest_as_small_as_can_be",
    ),
    Mutant(
        "pipeline: of experts those count that a token gets",
        "trainer/modeling/stage_costs.py",
        "share.get(parameter, 1.0)",
        "1.0",
        f"{CUT_TEST}::test_what_a_token_costs_is_counted_in_products",
    ),
    Mutant(
        "pipeline: the embedding costs no time",
        "trainer/modeling/stage_costs.py",
        " and parameter not in embedded\n",
        "\n",
        f"{CUT_TEST}::test_what_a_token_costs_is_counted_in_products",
    ),
    Mutant(
        "pipeline: a model that does more than its layers is not split",
        STAGES,
        "    if not same:\n",
        "    if False:\n",
        f"{CUT_TEST}::test_models_that_are_no_chain_of_layers_are_refused",
    ),
    Mutant(
        "pipeline: layers that share a container are not split",
        STAGES,
        "    if seen:\n",
        "    if False:\n",
        f"{CUT_TEST}::test_layers_that_leave_something_for_later_ones_are_no_chain",
    ),
    Mutant(
        "pipeline: an error of one stage is one on all",
        "trainer/modeling/pipeline.py",
        "enumerate(peers.gather_objects(problem))",
        "enumerate([problem])",
        f"{TEST}::test_an_error_on_one_stage_while_ways_are_compared_is_one_on_every_stage",
    ),
    Mutant(
        "pipeline: hidden states travel in the expected type",
        "trainer/modeling/pipeline.py",
        "        if isinstance(result, StageOutput) and result.hidden.dtype != self._stage.dtype:\n",
        "        if False:\n",
        f"{CUT_TEST}::test_hidden_states_of_another_type_are_refused_on_every_stage",
    ),
    Mutant(
        "pipeline: rank 0 writes the tensors of all stages",
        "trainer/publishing/weights.py",
        "    return of_all_stages(own, parallel)\n",
        "    return own\n",
        f"{TEST}::test_rank_0_writes_the_weights_and_adapters_of_all_stages",
    ),
    Mutant(
        "pipeline: one process writes the random states of its rows",
        "trainer/process/parallel.py",
        " and self.is_first_stage\n",
        "\n",
        f"{TEST}::test_rank_0_writes_the_weights_and_adapters_of_all_stages",
    ),
    Mutant(
        "pipeline: what no test has run in stages is refused",
        "trainer/step/opening.py",
        "    _check_stages(parallel, options)\n",
        "",
        f"{CUT_TEST}::test_what_no_test_has_run_in_stages_is_refused_with_its_name",
    ),
    Mutant(
        "pipeline: an adapter is described by the layers of all stages",
        "trainer/publishing/adapter.py",
        "        stages = [own] if parallel.pipeline is None else parallel.pipeline.peers.gather_objects(own)\n",
        "        stages = [own]\n",
        ADAPTER,
    ),
    Mutant(
        "pipeline: short names are unambiguous in all stages",
        "trainer/publishing/adapter.py",
        "for _, weighted in stages for name",
        "for _, weighted in [own] for name",
        ADAPTER,
    ),
    Mutant(
        "pipeline: rows of the own forward are whole where slices are computed",
        "trainer/modeling/forward.py",
        "    shares = 1 if lm.sharing is None else lm.sharing.size\n    return 1, ",
        "    shares = 1 if lm.context is None else lm.context.size\n    return 1, ",
        f"{TEST}::test_slices_of_rows_go_through_stages",
    ),
    Mutant(
        "pipeline: gradients of slices are compared as the sum that they are",
        "trainer/modeling/forward_choice.py",
        "coefficients_E[start:] * parts)",
        "coefficients_E[start:])",
        f"{TEST}::test_slices_of_rows_go_through_stages",
    ),
)
