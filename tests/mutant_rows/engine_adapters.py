"""Protections of adapters that engines load themselves."""

from tests.mutant_rows.mutant import Mutant

POOL = "tests/sampler/test_pool.py"
ADAPTERS = "tests/contract/test_engine_adapters.py"

MUTANTS = (
    Mutant(
        "no engine is launched to load a DoRA",
        "scripts/tandem/launch/policies.py",
        "    _check_adapters(policies)\n",
        "",
        "tests/system/test_launch_policies.py::test_an_engine_that_loads_adapters_gets_no_dora",
    ),
    Mutant(
        "a keeper gives its engine no DoRA",
        "sampler/engine/keeper/adapters.py",
        "            if is_dora(folder):\n",
        "            if False:\n",
        f"{ADAPTERS}::test_a_dora_is_refused_by_the_engine_and_before_it_by_the_keeper_with_the_remedy",
    ),
    Mutant(
        "vLLM on a CPU: rows without an adapter get none",
        "sampler/engine/vllm/worker.py",
        "\nskip_base_rows()\n",
        "\n",
        f"{ADAPTERS}::test_requests_of_many_adapters_and_of_the_base_do_not_mix",
    ),
    Mutant(
        "vLLM: an adapter is unloaded once no request holds it",
        "sampler/engine/vllm/adapters.py",
        "            await self._ended.wait_for(lambda: not self._users[adapter.lora_int_id])\n",
        "            pass\n",
        f"{ADAPTERS}::test_unloading_waits_for_the_requests_that_hold_the_adapter",
    ),
    Mutant(
        "tokens of an adapter over another base are refused",
        "sampler/core/engines/client/generation.py",
        "if other := [version for version, _ in runs if version != FIRST_VERSION]:",
        "if other := [version for version, _ in runs if version < FIRST_VERSION]:",
        f"{POOL}::test_tokens_of_an_adapter_over_another_base_are_refused",
    ),
    Mutant(
        "a replaced adapter makes no engine suspect",
        "sampler/core/engines/pool/engine_pool.py",
        "if isinstance(exc, AdapterNotLoaded):",
        "if False:",
        f"{POOL}::test_a_replaced_adapter_causes_a_refresh_and_no_suspicion",
    ),
    Mutant(
        "an adapter's files are verified before the engine reads them",
        "sampler/engine/keeper/adapters.py",
        "            await asyncio.to_thread(verify_files, folder, target.adapter or {})\n",
        "",
        f"{ADAPTERS}::test_a_damaged_adapter_is_never_loaded",
    ),
    Mutant(
        "an adapter that the engine lost is loaded again",
        "sampler/engine/keeper/keeper.py",
        "if self._adapters is not None and await self._adapters.is_lost(self.url):",
        "if False:",
        f"{ADAPTERS}::test_an_adapter_that_the_engine_lost_is_loaded_again",
    ),
    Mutant(
        "vLLM: adapters stay in memory whose files are deleted",
        "sampler/engine/vllm/start.py",
        '"max_cpu_loras": 16,',
        '"max_cpu_loras": 4,',
        f"{ADAPTERS}::test_requests_of_many_adapters_and_of_the_base_do_not_mix",
    ),
    Mutant(
        "a keeper unloads its own policy's adapters alone",
        "sampler/engine/keeper/adapters.py",
        "if name.startswith(self._prefix) and name != self.serving",
        "if name != self.serving",
        f"{ADAPTERS}::test_adapters_of_a_killed_keeper_are_unloaded_and_no_others",
    ),
)
