"""Protections between samplers, keepers and engines."""

from tests.mutant_rows.mutant import Mutant

TRANSPORT = "tests/sampler/test_transport.py"
KEEPER = "tests/contract/test_keeper.py"
POOL = "tests/sampler/test_pool.py"
USERS = "tests/system/test_database_users.py"
LISTS = "tests/sampler/test_engine_lists.py"
MEMORY = "tests/sampler/engine/local/test_memory.py"
CONTEXTS = "tests/sampler/test_short_contexts.py"
INT8 = "tests/contract/test_int8.py"
TOOL_PROMPT = "tests/sampler/test_tool_prompt.py"
PROCESSES = "tests/contract/test_keeper_processes.py"

ADAPTERS = "tests/contract/test_engine_adapters.py"
IN_FLIGHT = "tests/contract/test_in_flight.py"
VLLM_ALONE = "tests/contract/test_vllm_alone.py"

MUTANTS = (
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
        f"{VLLM_ALONE}::test_it_has_a_bounded_cache_and_serves_vllms_own_figures_where_they_are_asked_for",
    ),
    Mutant(
        "vLLM: ended while it starts, it leaves no process",
        "sampler/engine/vllm/__main__.py",
        "        signal.signal(number, _end_in_order)\n",
        "        pass\n",
        f"{VLLM_ALONE}::test_ended_while_it_starts_it_leaves_no_process",
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
    Mutant(
        "an engine that serves already says its context",
        "sampler/engine/keeper/keeper.py",
        "        self._context = info.context\n",
        "",
        f"{CONTEXTS}::test_an_engine_that_serves_already_says_its_context_before_the_first_request",
    ),
    Mutant(
        "the launcher's probe sends the engines' key",
        "scripts/tandem/launch/step_cost.py",
        '{"authorization": f"Bearer {api_key}"} if api_key else {}',
        "{}",
        "tests/contract/test_api_key.py::test_an_engine_with_an_api_key_is_used_with_it_and_refuses_requests_without_it_at_once",
    ),
    Mutant(
        "tools in the prompts of a template that ignores them",
        "sampler/core/rendering/chosen_template.py",
        "if not shows_tools(template):",
        "if False:",
        f"{TOOL_PROMPT}::test_the_setting_chooses_the_template",
    ),
    Mutant(
        "control tokens of schemas in a completed template",
        "sampler/core/rendering/template.py",
        "self.control.mark(list(tools)) if tools else None",
        "list(tools) if tools else None",
        f"{TOOL_PROMPT}::test_schemas_write_no_control_tokens_and_the_form_does",
    ),
    Mutant(
        "an engine's first weights are the run's own",
        "sampler/engine/keeper/starting.py",
        "or not _same(reached.folder, model)",
        "or False",
        "tests/sampler/engine/test_keeper_first_weights.py"
        "::test_first_weights_in_another_folder_than_the_engines_are_loaded",
    ),
    Mutant(
        "clamp to an engine's shorter context",
        "sampler/core/engines/pool/engine_pool.py",
        "self.contexts.learn(service.url, exc, len(prompt_ids) + len(progress.output_ids))",
        "raise exc",
        f"{CONTEXTS}::test_an_episode_ends_where_the_engines_context_does",
    ),
    Mutant(
        "no retry of what an engine refuses for good",
        "sampler/core/episode/episode.py",
        " or (isinstance(exc, EngineRefused) and not isinstance(exc, KeyRefused))",
        "",
        f"{CONTEXTS}::test_a_refusal_that_stays_fails_the_slot_at_once",
    ),
    Mutant(
        "small pages of the local engine's cache",
        "sampler/engine/local/kv.py",
        "memory.madvise(mmap.MADV_NOHUGEPAGE)",
        "memory.madvise(mmap.MADV_HUGEPAGE)",
        f"{MEMORY}::test_a_few_tokens_in_eight_slots_take_a_few_megabytes",
    ),
    Mutant(
        "bound of the local engine's cache in bytes",
        "sampler/engine/local/memory.py",
        "min(max_running, tokens // context)",
        "max_running",
        f"{MEMORY}::test_the_cache_has_as_many_slots_as_its_bytes_hold",
    ),
    Mutant(
        "an engine listens where it is announced",
        "sampler/engine/keeper/config.py",
        "if self.engine_host != LOOPBACK and",
        "if False and",
        "tests/system/test_launch_nodes.py::test_an_engine_command_that_ignores_its_host_is_refused",
    ),
    Mutant(
        "skipping of engines at another machine's loopback address",
        "sampler/core/engines/pool/engines.py",
        "service for service, why in listed if why is None]",
        "service for service, _ in listed]",
        f"{LISTS}::test_an_engine_at_another_machines_loopback_address_is_skipped_with_a_sentence",
    ),
    Mutant(
        "bound of an HTTP head: one without an end",
        "sampler/core/engines/client/transport.py",
        "    if len(received) >= MAX_HEAD_BYTES:\n",
        "    if False:\n",
        f"{TRANSPORT}::test_a_head_beyond_the_bound_is_an_error_even_if_the_server_continues",
    ),
    Mutant(
        "bound of an HTTP head: a long one with its end, interim answers",
        "sampler/core/engines/client/transport.py",
        'received.find(b"\\r\\n\\r\\n", start, MAX_HEAD_BYTES)',
        'received.find(b"\\r\\n\\r\\n", start)',
        f"{TRANSPORT}::test_a_head_beyond_the_bound_is_an_error_even_if_the_server_continues",
    ),
    Mutant(
        "bound of an HTTP body without a size",
        "sampler/core/engines/client/transport.py",
        "        if len(self._received) - self._head.start > 2 * MAX_BODY_BYTES:\n",
        "        if False:\n",
        f"{TRANSPORT}::test_a_body_without_a_size_is_bounded_too",
    ),
    Mutant(
        "layout of files before an engine sees them",
        "sampler/engine/keeper/keeper.py",
        "        await asyncio.to_thread(check_layout, reached.folder, self._layout)\n",
        "",
        f"{KEEPER}::test_files_that_would_crash_or_corrupt_an_engine_never_reach_it",
    ),
    Mutant(
        "question to the engine what it serves",
        "sampler/engine/keeper/update.py",
        "        await _load_over_stale_cache(client, url, folder, version)\n    await require_version(client, url, version)\n",
        "        await _load_over_stale_cache(client, url, folder, version)\n",
        f"{KEEPER}::test_an_engine_that_reports_a_wrong_version_serves_nothing_until_it_reports_the_right_one",
    ),
    Mutant(
        "draining: samplers send nothing",
        "sampler/core/engines/pool/engines.py",
        "AS_SEEN.get(service.status, service.status)",
        "ServiceStatus.UP",
        f"{KEEPER}::test_drain_lets_requests_finish_and_samplers_send_none_meanwhile",
    ),
    Mutant(
        "an engine that serves several policies counts once",
        "sampler/core/engines/pool/engines.py",
        "return list({service.url: service for service in listed",
        "return list({service.id: service for service in listed",
        f"{LISTS}::test_an_engine_that_serves_several_policies_counts_once",
    ),
    Mutant(
        "draining: every sampler knows in time",
        "sampler/core/engines/pool/engine_pool.py",
        "min(self._limits.refresh_s, LIST_AGE_S)",
        "self._limits.refresh_s",
        f"{LISTS}::test_a_sampler_learns_in_time_that_an_engine_drains_for_any_poll_interval",
    ),
    Mutant(
        "draining: a list that took long to read",
        "sampler/core/engines/pool/engine_pool.py",
        "self._live(version) if self._list_age_s() < LIST_AGE_S else []",
        "self._live(version)",
        f"{POOL}::test_a_list_of_engines_that_took_long_to_read_is_reread_before_use",
    ),
    Mutant(
        "a keeper that is asked to stop starts no engine",
        "sampler/engine/keeper/keeper.py",
        "        if self._stop.is_set():\n            return\n        await (child := ",
        "        await (child := ",
        "tests/contract/test_keeper_stop.py::test_an_engine_that_ends_with_its_keeper_is_neither_counted_nor_started_again",
    ),
    Mutant(
        "draining: the keeper waits until every sampler knows",
        "sampler/engine/keeper/update.py",
        "        await asyncio.sleep(min(SETTLE_S, limit_s))\n",
        "",
        f"{KEEPER}::test_an_idle_engine_is_drained_only_once_every_sampler_knows",
    ),
    Mutant(
        "draining: it is waited for",
        "sampler/core/engines/pool/engine_pool.py",
        'if any(service.status == "DRAINING" for service in self._services):',
        "if False:",
        f"{POOL}::test_a_draining_engine_gets_no_requests_and_is_waited_for_longer_than_a_down_one",
    ),
    Mutant(
        "a keeper's health check asks the engine itself",
        "sampler/engine/keeper/health.py",
        "await _wrong_version(store, config, service) or await",
        "await",
        f"{USERS}::test_each_service_does_its_work_with_its_own_user",
    ),
    Mutant(
        "a keeper's health check looks at every keeper of the host",
        "sampler/engine/keeper/health.py",
        "for service in own]",
        "for service in own[:1]]",
        "tests/sampler/engine/test_keeper_health.py::test_every_keeper_of_the_host_is_checked",
    ),
    Mutant(
        "an engine that may have resumed its memory is ended",
        "sampler/engine/keeper/keeper.py",
        "await self._require_child().kill()  # its memory may be allocated",
        "pass  # its memory may be allocated",
        f"{PROCESSES}::test_an_engine_that_may_have_resumed_its_memory_is_ended_before_a_trainer_has_the_device",
    ),
    Mutant(
        "all processes of an engine end with its keeper",
        "shared/processes/bound.py",
        "    keep(int(sys.argv[1]), lambda: None, lambda: execute(command), kill_s=math.inf)\n",
        "    execute(command)\n",
        f"{PROCESSES}::test_all_processes_of_an_engine_end_if_its_keeper_is_killed",
    ),
    Mutant(
        "an engine's processes are ended also where its guard is killed",
        "sampler/engine/keeper/child.py",
        "        await _sweep(self._noted)\n",
        "",
        f"{PROCESSES}::test_a_crashed_engine_gives_its_device_away_when_its_last_process_has_ended",
    ),
    Mutant(
        "an engine counts as alive while a request to it lasts",
        "sampler/engine/keeper/sharing.py",
        "            await asyncio.sleep(STAY_S)\n",
        "            await asyncio.Event().wait()\n",
        f"{PROCESSES}::test_an_engine_counts_as_alive_while_a_request_to_it_lasts",
    ),
)
