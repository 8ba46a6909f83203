"""Lines that hold on a device that is not the CPU, found on a GPU of host memory (tests/hostgpu)."""

from tests.mutant_rows.mutant import Mutant

LEARNER = "tests/trainer/test_on_hostgpu.py::test_a_learner_computes_there_what_it_computes_on_a_cpu"
LAYOUTS = "tests/trainer/test_on_hostgpu.py::test_two_ranks_train_there_the_parameters_of_one_process_on_a_cpu"
REFERENCE = "tests/trainer/test_on_hostgpu.py::test_a_reference_model_by_turns_changes_no_parameter"

MUTANTS = (
    Mutant(
        "hostgpu: the loss makes its tensors where the row is",
        "trainer/step/accumulate.py",
        "torch.zeros_like(truncated_E)",
        "torch.zeros(truncated_E.shape, dtype=truncated_E.dtype)",
        LEARNER,
    ),
    Mutant(
        "hostgpu: counts are moved to the device",
        "trainer/step/accumulate.py",
        "own.tokens_T.to(device), entries_T",
        "own.tokens_T, entries_T",
        LEARNER,
    ),
    Mutant(
        "hostgpu: the mask lies where the row is",
        "trainer/modeling/attention.py",
        "    index_N = torch.arange(len(ends_N), device=ends_N.device)",
        "    index_N = torch.arange(len(ends_N))",
        LEARNER,
    ),
    Mutant(
        "hostgpu: a copy to the host is waited for",
        "trainer/modeling/sampled_gradients.py",
        "SAMPLE))].double().cpu()",
        'SAMPLE))].double().to("cpu", non_blocking=True)',
        LEARNER,
    ),
    Mutant(
        "hostgpu: a checkpoint has the device's random numbers",
        "trainer/checkpoints/random_states.py",
        '    if device.type != "cpu":',
        '    if device.type == "cuda":',
        LEARNER,
    ),
    Mutant(
        "hostgpu: states leave any device",
        "trainer/step/residence.py",
        'if device.type == "cpu" or learner',
        'if device.type != "cuda" or learner',
        LEARNER,
    ),
    Mutant(
        "hostgpu: a reference model leaves the device after its turn",
        "trainer/step/reference.py",
        "            yield\n        finally:\n            self._free()",
        "            yield\n        finally:\n            self._lm.free_features()",
        LEARNER,
    ),
    Mutant(
        "hostgpu: a reference model has its weights in its turn",
        "trainer/step/reference.py",
        "                tensor.copy_(value, non_blocking=True)",
        "                tensor.numel() == value.numel()",
        REFERENCE,
    ),
    Mutant(
        "hostgpu: a slice's log-probs are gathered on the device",
        "trainer/modeling/context_parallel.py",
        "whole = own.new_zeros(count, *own.shape[1:]).index_copy_(",
        "whole = torch.zeros(count, dtype=own.dtype).index_copy_(",
        LAYOUTS,
    ),
)
