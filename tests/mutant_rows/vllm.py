"""Protections of vLLM as an engine."""

from tests.mutant_rows.mutant import Mutant

IDLE = "tests/contract/test_idle.py::test_between_requests_no_process_of_an_engine_uses_the_processor"
INT8 = "tests/contract/test_int8.py"
IN_FLIGHT = "tests/contract/test_in_flight.py"
VLLM_ALONE = "tests/contract/test_vllm_alone.py"

MUTANTS = (
    Mutant(
        "vLLM: a retracted request has its images, although they were in the cache",
        "sampler/engine/vllm/start.py",
        '"mm_processor_cache_type": "shm",',
        '"mm_processor_cache_type": "lru",',
        "tests/contract/images/test_images.py::test_a_request_whose_image_was_in_the_cache_continues_after_the_cache_was_emptied",
    ),
    Mutant(
        "vLLM on a CPU: its core waits for a signal",
        "sampler/engine/vllm/start.py",
        "WaitingExecutor if current_platform.is_cpu() else None",
        "None",
        IDLE,
    ),
    Mutant(
        "vLLM on a CPU: its workers wait for a signal",
        "sampler/engine/vllm/worker.py",
        "if current_platform.is_cpu():\n    wait_for_signals()\n",
        "",
        IDLE,
    ),
    Mutant(
        "vLLM on a CPU: a writer drops no notification",
        "sampler/engine/vllm/waiting.py",
        "        if is_reader:\n",
        "        if True:\n",
        f"{VLLM_ALONE}::test_no_notification_between_its_processes_is_lost",
    ),
    Mutant(
        "vLLM: a tied output layer is packed anew after an update",
        "sampler/engine/vllm/worker.py",
        'if hasattr(layer, "cpu_linear") and layer.weight.numel():',
        "if False:",
        f"{IN_FLIGHT}::test_an_update_clears_every_cached_prefix",
    ),
    Mutant(
        "int8: scales of a later version stay where oneDNN points to",
        "sampler/engine/vllm/int8.py",
        "\n_keep_scales()\n",
        "\n",
        f"{INT8}::test_an_engine_with_8_bits_samples_by_the_rounded_weights_of_each_version",
    ),
    Mutant(
        "int8: 7 bits where the kernels of 8 overflow",
        "sampler/engine/loading/int8.py",
        "LARGEST if VNNI & {*flags.split()} else LARGEST_WITHOUT_VNNI",
        "LARGEST",
        f"{INT8}::test_a_processor_without_vnni_gets_7_bits",
    ),
    Mutant(
        "vLLM on a CPU: its KV cache is bounded",
        "sampler/engine/vllm/start.py",
        "        _bound_cache(given)\n",
        "        pass\n",
        f"{VLLM_ALONE}::test_it_has_a_bounded_cache_and_serves_vllms_own_metrics_where_they_are_enabled",
    ),
    Mutant(
        "vLLM: ended while it starts, it leaves no process",
        "sampler/engine/vllm/__main__.py",
        "        signal.signal(number, _end_in_order)\n",
        "        pass\n",
        f"{VLLM_ALONE}::test_ended_while_it_starts_it_leaves_no_process",
    ),
    Mutant(
        "vLLM: its processes end with its server",
        "sampler/engine/vllm/start.py",
        "    await Workers(llm).end_with_this_process()\n",
        "",
        "tests/contract/test_owned.py::test_none_of_vllms_processes_outlives_its_killed_server",
    ),
    Mutant(
        "vLLM: no update over a cache that requests hold",
        "sampler/engine/vllm/engine.py",
        'if self._pause == "in_place" and self._holds_cache() and flush_cache:',
        "if False:",
        f"{IN_FLIGHT}::test_an_update_over_a_held_cache_is_a_400_after_which_the_engines_differ",
    ),
    Mutant(
        "vLLM: log-probs of the distribution that was sampled",
        "sampler/engine/vllm/start.py",
        '"logprobs_mode": "processed_logprobs",',
        '"logprobs_mode": "raw_logprobs",',
        "tests/contract/test_generate.py::test_logprobs_are_those_of_the_distribution_that_was_sampled",
    ),
)
