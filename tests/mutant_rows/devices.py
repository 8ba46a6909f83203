"""Lines that hold on a device that is not the CPU, found on a GPU of host memory (tests/hostgpu)."""

from tests.mutant_rows.mutant import Mutant

ON_HOSTGPU = "tests/trainer/test_on_hostgpu.py::"
GRADIENTS = ON_HOSTGPU + "test_gradients_there_are_those_of_a_cpu"
RESUMED = ON_HOSTGPU + "test_checkpoints_continue_there"
STATES = ON_HOSTGPU + "test_states_move_from_there_and_weights_are_written"
LAYOUTS = ON_HOSTGPU + "test_two_ranks_train_there_the_parameters_of_one_process_on_a_cpu"
EXPERTS = ON_HOSTGPU + "test_two_ranks_hold_experts_together_there"
REFERENCE = ON_HOSTGPU + "test_a_reference_model_by_turns_changes_no_parameter"
RUN_THERE = ON_HOSTGPU + "test_a_run_and_images_are_trained_there"
CHECKED = "tests/hostgpu/test_gpu_check.py::"

MUTANTS = (
    Mutant(
        "hostgpu: the loss makes its tensors where the row is",
        "trainer/step/accumulate.py",
        "torch.zeros_like(truncated_E)",
        "torch.zeros(truncated_E.shape, dtype=truncated_E.dtype)",
        GRADIENTS,
    ),
    Mutant(
        "hostgpu: counts are moved to the device",
        "trainer/step/accumulate.py",
        "own.tokens_T.to(device), entries_T",
        "own.tokens_T, entries_T",
        GRADIENTS,
    ),
    Mutant(
        "hostgpu: the mask lies where the row is",
        "trainer/modeling/attention.py",
        "    index_N = torch.arange(len(ends_N), device=ends_N.device)",
        "    index_N = torch.arange(len(ends_N))",
        GRADIENTS,
    ),
    Mutant(
        "hostgpu: a copy to the host is waited for",
        "trainer/modeling/sampled_gradients.py",
        "SAMPLE))].double().cpu()",
        'SAMPLE))].double().to("cpu", non_blocking=True)',
        GRADIENTS,
    ),
    Mutant(
        "hostgpu: a checkpoint has the device's random numbers",
        "trainer/checkpoints/random_states.py",
        '    if device.type != "cpu":',
        '    if device.type == "cuda":',
        RESUMED,
    ),
    Mutant(
        "hostgpu: states leave any device",
        "trainer/step/residence.py",
        'if device.type == "cpu" or learner',
        'if device.type != "cuda" or learner',
        STATES,
    ),
    Mutant(
        "hostgpu: a reference model leaves the device after its turn",
        "trainer/step/reference.py",
        "            yield\n        finally:\n            self._free()",
        "            yield\n        finally:\n            self._lm.free_features()",
        STATES,
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
    Mutant(
        "hostgpu: a stage receives on its device",
        "trainer/modeling/pipeline.py",
        "received = torch.empty(self._shape(row), dtype=stage.dtype, device=self._device)",
        "received = torch.empty(self._shape(row), dtype=stage.dtype)",
        LAYOUTS,
    ),
    Mutant(
        "hostgpu: the order of received tokens lies where they are",
        "trainer/modeling/expert_parallel.py",
        "expert_R = torch.arange(held, device=rows_RH.device)",
        "expert_R = torch.arange(held)",
        EXPERTS,
    ),
    Mutant(
        "hostgpu: log-probs are on the host before they are arrays",
        "trainer/reporting/token_logprobs.py",
        "(of_E.detach().double().cpu() for",
        "(of_E.detach().double() for",
        RUN_THERE,
    ),
    Mutant(
        "hostgpu: weights are on the host before they are written",
        "trainer/publishing/whole_state.py",
        "whole[name] = tensor.detach().cpu()",
        "whole[name] = tensor.detach()",
        LAYOUTS,
    ),
    Mutant(
        "gpu_check: a difference beyond its bound is wrong",
        "scripts/gpu_check/layouts.py",
        "rows[-1][1], status == 0)",
        "rows[-1][1], True)",
        CHECKED + "test_a_layout_that_crashes_or_differs_is_wrong",
    ),
    Mutant(
        "gpu_check: two processes are compared with one",
        "scripts/gpu_check/layouts.py",
        'chosen = layout if layout == ALONE else f"{ALONE},{layout}"',
        'chosen = layout if "x" not in layout else f"{ALONE},{layout}"',
        CHECKED + "test_a_layout_that_crashes_or_differs_is_wrong",
    ),
    Mutant(
        "gpu_check: a program ends with its children",
        "scripts/gpu_check/programs.py",
        "os.killpg(child.pid, signal.SIGKILL)",
        "os.kill(child.pid, signal.SIGKILL)",
        CHECKED + "test_a_program_that_hangs_ends_with_its_children",
    ),
    Mutant(
        "gpu_check: a test that does not pass is wrong",
        "scripts/gpu_check/gpu_tests.py",
        "measured, passed == count and not others)",
        "measured, not others)",
        CHECKED + "test_a_wrong_figure_is_a_failed_row_and_exit_status",
    ),
    Mutant(
        "a gradient that is copied to the host is waited for",
        "trainer/modeling/sampled_gradients.py",
        "        torch.get_device_module(computing).synchronize()\n",
        "        pass\n",
        "tests/trainer/test_on_hostgpu.py::test_it_refuses_what_cuda_refuses",
    ),
)
