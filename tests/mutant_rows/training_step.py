"""The training step on a CPU: rows, saved logits, products, norms."""

from tests.mutant_rows.mutant import Mutant

MUTANTS = (
    Mutant(
        "step: rows are as short as the longest tree",
        "trainer/trees/packing.py",
        "    if short_rows:\n",
        "    if False:\n",
        "tests/trainer/test_packing.py::test_short_rows_are_as_long_as_the_longest_tree_and_hold_the_same_entries",
    ),
    Mutant(
        "norms: a norm of another formula stays",
        "trainer/modeling/norms.py",
        " if _is_rms_norm(norm) else None",
        "",
        "tests/trainer/test_norms.py::test_another_norm_stays",
    ),
    Mutant(
        "norms: the gradient through the norm's own scale",
        "trainer/modeling/norms.py",
        ".mul_(scale).addcmul_(x, pulled)",
        ".mul_(scale)",
        "tests/trainer/test_norms.py::test_values_and_gradients_are_those_of_float64",
    ),
    Mutant(
        "products: a library whose results are others is not chosen",
        "trainer/modeling/products.py",
        "    return agrees and own_s",
        "    return own_s",
        "tests/trainer/test_products.py::test_what_disagrees_or_is_missing_is_not_chosen",
    ),
    Mutant(
        "products: every rank computes as rank 0 measured",
        "trainer/modeling/products.py",
        "parallel.broadcast_object(is_faster)",
        "is_faster",
        "tests/trainer/test_products.py::test_every_rank_computes_as_rank_0_measured",
    ),
    Mutant(
        "products: rows have few lengths",
        "trainer/modeling/forward.py",
        "            few = math.lcm(few, TOKENS)\n",
        "            pass\n",
        "tests/trainer/test_products.py::test_a_step_is_that_of_mkl_and_its_shapes_are_multiples",
    ),
    Mutant(
        "products: log-probs of a row have few lengths",
        "trainer/modeling/logprobs.py",
        "    if extra:  #",
        "    if False:  #",
        "tests/trainer/test_products.py::test_a_step_is_that_of_mkl_and_its_shapes_are_multiples",
    ),
    Mutant(
        "step: saved logits are those of their block",
        "trainer/modeling/logprobs.py",
        "                    logits = saved_EV[part, block]\n",
        "                    logits = saved_EV[part, : block.stop - block.start]\n",
        "tests/trainer/test_logprobs.py::test_values_and_gradients_equal_log_softmax_for_any_chunk",
    ),
    Mutant(
        "step: saved logits are bounded",
        "trainer/modeling/logprobs.py",
        "shape[0] * shape[1] * dtype.itemsize > SAVED_LOGITS_BYTES:\n",
        "False:\n",
        "tests/trainer/test_logprobs.py::test_no_tensor_of_entries_times_vocabulary_is_made_beyond_the_bound",
    ),
    Mutant(
        "step: one process on a CPU copies no parameters",
        "trainer/process/sharding.py",
        "        and not settings.offload_params\n    ):\n        return\n",
        "        and not settings.offload_params\n    ):\n        pass\n",
        "tests/trainer/test_parallel.py::test_one_process_on_a_cpu_copies_no_parameters",
    ),
)
