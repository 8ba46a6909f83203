"""Protections between samplers, keepers and engines."""

from tests.mutant_rows.mutant import Mutant

TRANSPORT = "tests/sampler/test_transport.py"
KEEPER = "tests/contract/test_keeper.py"
POOL = "tests/sampler/test_pool.py"
USERS = "tests/system/test_database_users.py"
LISTS = "tests/sampler/test_engine_lists.py"
MEMORY = "tests/sampler/engine/local/test_memory.py"
CONTEXTS = "tests/sampler/test_short_contexts.py"
TOOL_PROMPT = "tests/sampler/test_tool_prompt.py"
PROCESSES = "tests/contract/test_keeper_processes.py"

PRODUCTS = "tests/sampler/engine/local/test_products.py"

SAMPLING = "tests/sampler/engine/local/test_sampling.py"

MUTANTS = (
    Mutant(
        "a keeper writes what changed at once",
        "sampler/engine/keeper/report.py",
        "if self._service.is_due(service, unchanged_s)",
        "if self._service.is_due(None, unchanged_s)",
        "tests/sampler/engine/test_keeper_reports.py::test_what_changed_is_written_at_once_and_the_rest_is_not",
    ),
    Mutant(
        "a keeper's heartbeats go on without a change",
        "sampler/engine/keeper/report.py",
        "if self._service.is_due(service, unchanged_s)",
        "if self._service.is_due(service, 3600.0)",
        "tests/sampler/engine/test_keeper_reports.py::test_without_a_change_both_are_written_again_after_a_while",
    ),
    Mutant(
        "engine products: a library whose results are others is not chosen",
        "sampler/engine/local/products.py",
        "    if not torch.allclose(own, other, rtol=1e-3, atol=1e-4 * float(own.abs().max())):\n        return False\n",
        "",
        f"{PRODUCTS}::test_it_is_chosen_where_it_is_faster_and_its_results_are_the_same",
    ),
    Mutant(
        "engine products: oneDNN computes few numbers of rows",
        "sampler/engine/local/products.py",
        "    return count + -count % multiple\n",
        "    return count\n",
        f"{PRODUCTS}::test_products_are_right_for_any_number_of_rows_and_their_shapes_are_few",
    ),
    Mutant(
        "engine products: what was measured for fewer rows is not used for more",
        "sampler/engine/local/products.py",
        "max((rows for rows in ROWS if rows <= count), default=0)",
        "min(rows for rows in ROWS)",
        f"{PRODUCTS}::test_each_number_of_rows_has_the_library_that_was_measured_for_it",
    ),
    Mutant(
        "blocks of a vocabulary: a number of its own within the block",
        "sampler/engine/local/sampling.py",
        "(target - (cumulative.gather(1, place) - mass)).div_(mass).clamp_(0.0)",
        "uniform",
        f"{SAMPLING}::test_the_remainder_of_a_uniform_number_is_uniform",
    ),
    Mutant(
        "blocks of a vocabulary: nothing beyond its end",
        "sampler/engine/local/sampling.py",
        ".mul_(inside)",
        "",
        f"{SAMPLING}::test_a_token_of_probability_0_is_never_drawn",
    ),
    Mutant(
        "an engine that serves already says its context",
        "sampler/engine/keeper/lifecycle.py",
        "None if self._info is None else self._info.context",
        "None",
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
        "self.contexts.learn(service.url, exc, len(prompt) + len(progress.output_ids))",
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
        "sampler/engine/keeper/lifecycle.py",
        "        if stop.is_set():\n            return\n        await (child := ",
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
        "await self._engine.kill()  # its memory may be allocated",
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
