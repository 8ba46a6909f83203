"""The list of `python -m tests.mutants`: each change takes one protection out, and names the test that has to fail then."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """In `file`, `old` (which stands there once) becomes `new`; `test` fails then: `path::name`."""

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def test_file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def test_name(self) -> str:
        return self.test.partition("::")[2]


LEASES = "tests/sampler/test_service_leases.py"
TASKS = "tests/shared/test_tasks.py"
TRANSPORT = "tests/sampler/test_transport.py"
BOUNDS = "tests/shared/test_task_file_bounds.py"
LATE = "tests/trainer/test_late_publisher.py"
DURABLE = "tests/trainer/test_durability.py"
KEEPER = "tests/contract/test_keeper.py"
SETTINGS = "tests/shared/test_store_settings.py"
POOL = "tests/sampler/test_pool.py"
ADMISSION = "tests/sampler/test_admission.py"
USERS = "tests/system/test_database_users.py"
LISTS = "tests/sampler/test_engine_lists.py"
ESCAPES = "tests/sampler/sandbox/test_escapes.py"
FORKS = "tests/sampler/sandbox/test_forked_warden.py"
SANDBOX = "tests/sampler/sandbox/test_sandbox.py"
TOOLS = "tests/sampler/sandbox/test_bundled_tools.py"
GATEWAY = "tests/sampler/mcp_docker/test_gateway.py"
GATEWAY_BUSY = "tests/sampler/mcp_docker/test_gateway_busy.py"
DEVICES = "tests/shared/test_leases.py"
THREADS = "tests/sampler/test_threads.py"

MUTANTS = (
    Mutant(
        "a cancellation after the score leaves the record scored",
        "sampler/episode.py",
        "if await tasks.is_scored_by(claim):",
        "if False:",
        "tests/sampler/test_episode.py::test_a_cancellation_between_the_score_and_its_acknowledgement_leaves_the_record_scored",
    ),
    Mutant(
        "a second SIGTERM does not end the grace",
        "scripts/launch/waiting.py",
        "if event.is_set() and number == signal.SIGINT:",
        "if event.is_set():",
        "tests/system/test_launch_nodes.py::test_only_ctrl_c_after_a_signal_ends_the_grace",
    ),
    Mutant(
        "what samplers could play is bounded by the off-policy budget",
        "shared/store/questions.py",
        """, "seq": {"$lt": seq_limit}}""",
        "}",
        "tests/shared/cli/test_metrics.py::test_wanted_episodes_are_the_slots_within_the_budget_not_the_whole_queue",
    ),
    Mutant(
        "threads: a copy of a reply means the one that was sampled after the same messages",
        "sampler/rendering/known_replies.py",
        "found = self._after_the_same(messages, found, copies)",
        "pass",
        f"{THREADS}::test_alternating_histories_lose_no_sampled_id_even_if_both_say_the_same",
    ),
    Mutant(
        "threads: a thread has one request at a time",
        "sampler/in_flight.py",
        "if thread in self._callers:",
        "if False:",
        f"{THREADS}::test_a_misuse_of_threads_fails_the_slot_with_the_remedy",
    ),
    Mutant(
        "threads: an episode does not end with an open request",
        "sampler/in_flight.py",
        "if self._callers:",
        "if False:",
        f"{THREADS}::test_an_episode_that_ends_with_an_open_request_is_refused_and_the_request_cancelled",
    ),
    Mutant(
        "threads: a failed episode cancels its other requests",
        "sampler/in_flight.py",
        "            task.cancel()\n",
        "            pass\n",
        f"{THREADS}::test_after_a_failure_of_one_thread_the_others_ask_nothing_and_nothing_stays_open",
    ),
    Mutant(
        "threads: a request without a reply leaves its thread as it was",
        "sampler/sampler.py",
        "                if turn is None:\n                    self._views[key] = before",
        "                if False:\n                    self._views[key] = before",
        f"{THREADS}::test_a_cancelled_request_leaves_its_thread_as_it_was",
    ),
    Mutant(
        "threads: a request closes its own thread's last turn alone",
        "sampler/journal.py",
        'self._unwritten.get(self._last.get(thread, ""))',
        "next(reversed(self._unwritten.values()), None)",
        f"{THREADS}::test_tool_calls_marks_and_scores_belong_to_the_turn_that_is_named",
    ),
    Mutant(
        "threads: an episode with an open request is not settled",
        "sampler/settlement/settle.py",
        "        _require_closed(rid, dispatches[rid])\n",
        "",
        f"{THREADS}::test_an_episode_with_an_open_request_is_set_aside_at_settlement_and_found_by_the_audit",
    ),
    Mutant(
        "threads: a turn's return leaves out turns that ran at the same time",
        "sampler/settlement/groups.py",
        "return earlier.number in later.while_open",
        "return False",
        f"{THREADS}::test_a_turns_return_counts_what_was_asked_after_its_reply",
    ),
    Mutant(
        "torchrun's own store keeps its port",
        "scripts/launch/nodes.py",
        """ + (environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")""",
        "",
        "tests/system/test_launch_nodes.py::test_torchrun_itself_starts_a_launcher_per_machine_which_keeps_off_its_store",
    ),
    Mutant(
        "children do not get the launcher's rank under torchrun",
        "scripts/launch/children.py",
        " or is_of_torchrun(name)",
        "",
        "tests/system/test_launch_nodes.py::test_children_do_not_inherit_the_launchers_rank_under_torchrun",
    ),
    Mutant(
        "a machine that is not the first stays until the last version was evaluated",
        "scripts/launch/following.py",
        "return not held_out or await EvalRound(store, policy, newest.version).is_complete()",
        "return True",
        "tests/system/test_launch_nodes.py::"
        "test_a_run_is_over_when_its_trainer_has_ended_and_its_last_version_was_evaluated",
    ),
    Mutant(
        "an engine listens where it is announced",
        "sampler/engine/keeper/config.py",
        "if self.engine_host != LOOPBACK and",
        "if False and",
        "tests/system/test_launch_nodes.py::test_an_engine_command_that_ignores_its_host_is_refused",
    ),
    Mutant(
        "a list of messages that repeats the conversation is refused",
        "sampler/rendering/view.py",
        "        self._sent.send(messages, restart=restart)\n",
        "",
        "tests/sampler/test_new_messages.py::"
        "test_an_episode_that_resends_its_history_fails_with_the_reason_and_is_not_retried",
    ),
    Mutant(
        "the conversation that a scorer reads is bounded",
        "sampler/messages/transcript.py",
        "while self._chars > self._max_chars and",
        "while False and",
        "tests/sampler/test_transcript.py::test_a_transcript_is_bounded_and_states_the_number_of_dropped_messages",
    ),
    Mutant(
        "renewal of leases: the loop",
        "sampler/service/service.py",
        '            "renew": (self._renew, self._config.renew_s),\n',
        "",
        f"{LEASES}::test_the_lease_of_a_long_episode_is_renewed_while_it_is_played",
    ),
    Mutant(
        "renewal of leases: the write",
        "shared/store/tasks.py",
        '        renewed = {"free_at": after(lease_s)}\n',
        "        renewed: dict[str, object] = {}\n",
        f"{TASKS}::test_renewal_keeps_a_lease_and_names_those_that_are_lost",
    ),
    Mutant(
        "cancellation of an episode whose lease was lost",
        "sampler/service/service.py",
        '                    log.warning("lease lost record=%s", claim.record_id)\n                    task.cancel()\n',
        '                    log.warning("lease lost record=%s", claim.record_id)\n',
        f"{LEASES}::test_an_episode_with_a_lost_lease_is_cancelled_and_the_sampler_continues",
    ),
    Mutant(
        "fence of a run's end: the start of the trainer",
        "shared/store/runs.py",
        'f"trainer_generations.{policy}": end.trainer_generation, f"ends.{policy}": None}',
        'f"ends.{policy}": None}',
        "tests/shared/cli/test_run_ends.py::test_a_trainer_that_was_replaced_cannot_end_the_run",
    ),
    Mutant(
        "a step's metrics are said once",
        "shared/store/steps.py",
        '{"_id": step_id, "metrics": {"$in": [None, {}]}}',
        '{"_id": step_id}',
        f"{SETTINGS}::test_what_a_step_logged_is_stored_with_it_and_bounded",
    ),
    Mutant(
        "bound of a step's metrics",
        "shared/store/steps.py",
        "sorted(metrics)[:MOST_METRICS]",
        "sorted(metrics)",
        f"{SETTINGS}::test_what_a_step_logged_is_stored_with_it_and_bounded",
    ),
    Mutant(
        "bound of the workers that settings name",
        "shared/store/settings.py",
        '{"$slice": [{"$concatArrays": [known, [name]]}, -MOST_WORKERS]}',
        '{"$concatArrays": [known, [name]]}',
        f"{SETTINGS}::test_of_very_many_workers_the_last_stay",
    ),
    Mutant(
        "bound of a list of tools",
        "shared/documents/tool_schemas.py",
        "            if num_bytes > MOST_BYTES:\n                break\n",
        "",
        "tests/shared/test_tool_schemas.py::test_a_list_that_is_too_large_is_cut_with_a_count",
    ),
    Mutant(
        "secrets of the agents' settings: extra_body",
        "sampler/agents/config.py",
        "HIDDEN if _SECRET_NAME.search(k) else",
        "HIDDEN if False else",
        "tests/sampler/test_settings_kept.py::test_each_distinct_settings_of_samplers_are_stored_once_including_their_agents",
    ),
    Mutant(
        "bound of what is said of a score",
        "sampler/scorers/details.py",
        "for one in accepted[:MOST_EXPECTED]]",
        "for one in accepted]",
        "tests/sampler/test_scorers.py::test_a_scores_details_are_bounded_for_any_answers",
    ),
    Mutant(
        "fence of a slot: the attempt",
        "shared/store/slots.py",
        '"attempt": claim.attempt, "status": SlotStatus.LEASED}',
        '"status": SlotStatus.LEASED}',
        f"{TASKS}::test_a_zombie_is_refused_after_its_lease_was_taken_over",
    ),
    Mutant(
        "fence of a slot: the state",
        "shared/store/slots.py",
        '"attempt": claim.attempt, "status": SlotStatus.LEASED}',
        '"attempt": claim.attempt}',
        f"{TASKS}::test_a_zombie_is_refused_although_its_slot_was_not_leased_again",
    ),
    Mutant(
        "time-out of opening a tool session",
        "sampler/tools/connection.py",
        "{opened, self._task}, timeout=self._limits.open_s, return_when",
        "{opened, self._task}, timeout=None, return_when",
        "tests/sampler/test_tool_failures.py::test_opening_times_out_as_a_whole_if_the_server_trickles_bytes",
    ),
    Mutant(
        "bound of an HTTP head: one without an end",
        "sampler/engine/client/transport.py",
        "    if len(received) >= MAX_HEAD_BYTES:\n",
        "    if False:\n",
        f"{TRANSPORT}::test_a_head_beyond_the_bound_is_an_error_even_if_the_server_continues",
    ),
    Mutant(
        "bound of an HTTP head: a long one with its end, interim answers",
        "sampler/engine/client/transport.py",
        'received.find(b"\\r\\n\\r\\n", start, MAX_HEAD_BYTES)',
        'received.find(b"\\r\\n\\r\\n", start)',
        f"{TRANSPORT}::test_a_head_beyond_the_bound_is_an_error_even_if_the_server_continues",
    ),
    Mutant(
        "bound of an HTTP body without a size",
        "sampler/engine/client/transport.py",
        "        if len(self._received) - self._head.start > 2 * MAX_BODY_BYTES:\n",
        "        if False:\n",
        f"{TRANSPORT}::test_a_body_without_a_size_is_bounded_too",
    ),
    Mutant(
        "bound of a task line: the refusal",
        "shared/tasks/lines.py",
        "    if len(raw) > MAX_LINE_BYTES:\n        yield",
        "    if False:\n        yield",
        f"{BOUNDS}::test_a_task_beyond_the_bound_is_refused_with_its_line_and_one_at_the_bound_is_taken",
    ),
    Mutant(
        "bound of a task line: the reading",
        "shared/tasks/lines.py",
        "file.readline(MAX_LINE_BYTES + 1)",
        "file.readline()",
        f"{BOUNDS}::test_of_a_file_without_an_end_of_line_no_more_is_read_than_the_bound",
    ),
    Mutant(
        "start of the publisher: the number in what it announces",
        "trainer/publishing/publish.py",
        "                trainer_generation=self._trainer_generation,\n",
        "",
        f"{LATE}::test_a_publisher_that_was_replaced_announces_nothing_and_deletes_nothing",
    ),
    Mutant(
        "start of the publisher: the fence",
        "trainer/publishing/publish.py",
        "            self._bridge(self._store.versions.fence(policy, trainer_generation, step))\n",
        "",
        f"{LATE}::test_a_publisher_that_was_replaced_announces_nothing_and_deletes_nothing",
    ),
    Mutant(
        "pruning spares what is evaluated",
        "trainer/publishing/publish.py",
        "[*last, *(v for v in surviving if v.version in awaited and v not in last)]",
        "[*last]",
        "tests/trainer/test_pruning.py::test_pruning_spares_a_version_until_the_last_task_of_its_round_is_settled",
    ),
    Mutant(
        "flush of what is published: the contents",
        "trainer/checkpoints/atomic_directories.py",
        "        _fsync(path)\n",
        "        pass\n",
        f"{DURABLE}::test_a_version_is_flushed_whole_before_it_is_announced",
    ),
    Mutant(
        "flush of what is published: the name",
        "trainer/checkpoints/atomic_directories.py",
        "    _fsync(target.parent)\n",
        "",
        f"{DURABLE}::test_a_version_is_flushed_whole_before_it_is_announced",
    ),
    Mutant(
        "layout of files before an engine sees them",
        "sampler/engine/keeper/keeper.py",
        "        await asyncio.to_thread(check_layout, reached.folder, self._layout)\n",
        "",
        f"{KEEPER}::test_files_that_would_crash_or_corrupt_an_engine_never_reach_it",
    ),
    Mutant(
        "size of a safetensors file against its header",
        "shared/weights/tensor_file.py",
        "    if size != reached:\n",
        "    if False:\n",
        "tests/shared/test_buckets.py::test_a_file_that_cannot_be_split_is_refused",
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
        "sampler/engine/pool/engines.py",
        "AS_SEEN.get(service.status, service.status)",
        "ServiceStatus.UP",
        f"{KEEPER}::test_drain_lets_requests_finish_and_samplers_send_none_meanwhile",
    ),
    Mutant(
        "draining: every sampler knows in time",
        "sampler/engine/pool/engine_pool.py",
        "min(self._limits.refresh_s, LIST_AGE_S)",
        "self._limits.refresh_s",
        f"{LISTS}::test_a_sampler_learns_in_time_that_an_engine_drains_for_any_poll_interval",
    ),
    Mutant(
        "draining: a list that took long to read",
        "sampler/engine/pool/engine_pool.py",
        "if live and self._list_age_s() < LIST_AGE_S:",
        "if live:",
        f"{POOL}::test_a_list_of_engines_that_took_long_to_read_is_reread_before_use",
    ),
    Mutant(
        "a keeper that is asked to stop starts no engine",
        "sampler/engine/keeper/keeper.py",
        "        if self._stop.is_set():\n            return\n        assert self._child is not None",
        "        assert self._child is not None",
        "tests/contract/test_keeper_stop.py::test_an_engine_that_ends_with_its_keeper_is_neither_counted_nor_started_again",
    ),
    Mutant(
        "draining: the keeper waits until every sampler knows",
        "sampler/engine/keeper/update.py",
        "    await asyncio.sleep(min(SETTLE_S, limit_s))\n",
        "",
        f"{KEEPER}::test_an_idle_engine_is_drained_only_once_every_sampler_knows",
    ),
    Mutant(
        "draining: it is waited for",
        "sampler/engine/pool/engine_pool.py",
        'if any(service.status == "DRAINING" for service in self._services):',
        "if False:",
        f"{POOL}::test_a_draining_engine_gets_no_requests_and_is_waited_for_longer_than_a_down_one",
    ),
    Mutant(
        "admission: what is imported meanwhile",
        "shared/store/admission.py",
        "return waiting[room] if room < len(waiting) else end + room - len(waiting)",
        "return waiting[room] if room < len(waiting) else await self._end(owner) + room - len(waiting)",
        f"{ADMISSION}::test_tasks_imported_during_the_count_are_not_opened_beyond_the_limit",
    ),
    Mutant(
        "admission: weights that are not published",
        "shared/store/admission.py",
        "return found + await self._count_groups(unpublished, ",
        "return found + 0 * await self._count_groups(unpublished, ",
        f"{ADMISSION}::test_counting_groups_between_opened_and_trained_equals_the_formula_over_all_documents",
    ),
    Mutant(
        "own code: a wrong setting is not retried",
        "sampler/episode.py",
        "    most = config.max_failures if may_pass else 1",
        "    most = config.max_failures",
        "tests/sampler/test_mcp_sampler.py::test_a_task_with_missing_needs_names_them_and_is_retried_only_if_they_may_appear",
    ),
    Mutant(
        "own code: a task for another sampler is left to it",
        "sampler/service/playable.py",
        "        return text is not None\n",
        "        return False\n",
        "tests/sampler/test_playable.py::test_unplayable_tasks_are_left_to_other_samplers_even_if_they_arrive_later",
    ),
    Mutant(
        "own code: a judge's keys are in no details",
        "sampler/scorers/registry.py",
        "details=without(keys, ",
        "details=without([], ",
        "tests/sampler/test_own_scorers.py::test_a_scorers_own_judge_receives_the_key_and_no_output_contains_it",
    ),
    Mutant(
        "own code: a log is read in bounded time",
        "scripts/launch/errors.py",
        "max(self._at, size - MAX_BYTES)",
        "self._at",
        "tests/system/test_launch_errors.py::test_a_log_is_read_by_whole_lines_from_its_start_on_and_in_bounded_time",
    ),
    Mutant(
        "who is alive: a rare heartbeat",
        "shared/store/liveness.py",
        '{"$multiply": [MISSED_HEARTBEATS, period_s]}',
        "0",
        "tests/shared/cli/test_cli_reading.py::test_an_engine_whose_keeper_was_killed_is_said_to_be_silent",
    ),
    Mutant(
        "leases: a device is taken only from engines that sleep",
        "shared/store/leases.py",
        '"$expr": {"$and": [LASTS, NONE_OCCUPIES]},',
        '"$expr": LASTS,',
        f"{DEVICES}::test_a_device_is_taken_only_after_every_engine_on_it_has_confirmed",
    ),
    Mutant(
        "leases: no engine wakes on a claimed device",
        "shared/store/leases.py",
        '                "$expr": IS_FREE,\n            },\n            {"$set": {"occupants.$.asleep_for": None}},',
        '            },\n            {"$set": {"occupants.$.asleep_for": None}},',
        f"{DEVICES}::test_an_engine_does_not_wake_while_the_device_is_claimed",
    ),
    Mutant(
        "leases: one that is over is never renewed",
        "shared/store/leases.py",
        '"state": {"$in": CLAIMED}, "$expr": LASTS}, [{"$set": {"free_at"',
        '"state": {"$in": CLAIMED}}, [{"$set": {"free_at"',
        f"{DEVICES}::test_the_lease_of_a_killed_holder_ends_by_the_servers_clock_for_good",
    ),
    Mutant(
        "leases: the engine of a dead keeper is not waited for",
        "shared/store/leases.py",
        '{"$and": [{"$eq": ["$$o.asleep_for", None]}, {"$gt": ["$$o.free_at", NOW]}]}',
        '{"$eq": ["$$o.asleep_for", None]}',
        f"{DEVICES}::test_an_engine_whose_keeper_died_is_not_waited_for",
    ),
    Mutant(
        "a sampler's user does not write versions of the weights",
        "shared/store/users.py",
        'read=("policy_versions", "inference_services"))),\n    Role("keeper"',
        'write=("policy_versions", "inference_services"))),\n    Role("keeper"',
        f"{USERS}::test_a_user_may_send_exactly_the_commands_of_its_service",
    ),
    Mutant(
        "a preparation takes back rights that were added",
        "shared/store/users.py",
        '        admin.admin.command(f"update{kind}", name, **definition)\n',
        "        pass\n",
        f"{USERS}::test_a_second_preparation_keeps_passwords_and_takes_back_rights_that_somebody_added",
    ),
    Mutant(
        "a keeper's health check asks the engine itself",
        "sampler/engine/keeper/health.py",
        "await _wrong_version(store, config, service) or await",
        "await",
        f"{USERS}::test_each_service_does_its_work_with_its_own_user",
    ),
    Mutant(
        "commands that read need no right to write",
        "shared/cli/status.py",
        "work, read_only=True)",
        "work)",
        f"{USERS}::test_each_service_does_its_work_with_its_own_user",
    ),
    Mutant(
        "sandbox: seccomp",
        "sampler/mcp_docker/sandbox/confinement.py",
        "        _filter(seccomp.program(seccomp.FAMILIES if what.network else ()))\n",
        "",
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: seccomp of bubblewrap",
        "sampler/mcp_docker/sandbox/warden.py",
        "os.write(filled, program(FAMILIES))",
        "os.write(filled, program(FAMILIES)[-8:])",
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: sockets without a network",
        "sampler/mcp_docker/sandbox/confinement.py",
        "seccomp.FAMILIES if what.network else ()",
        "seccomp.FAMILIES",
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: bubblewrap's network",
        "sampler/mcp_docker/sandbox/bubblewrap.py",
        '(*_NAMESPACES, *(() if network else ("net",)))',
        "_NAMESPACES",
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: Landlock",
        "sampler/mcp_docker/sandbox/confinement.py",
        "        landlock.restrict([*SYSTEM, *readable_files(what)], [what.folder])\n",
        "",
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: bubblewrap's own processes",
        "sampler/mcp_docker/sandbox/bubblewrap.py",
        '("user", "pid", "ipc"',
        '("user", "ipc"',
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: bubblewrap's root and /dev are read-only",
        "sampler/mcp_docker/sandbox/bubblewrap.py",
        '"--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")',
        '"--dev", "/dev", *size, "--tmpfs", "/dev/shm")',
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: the size of one file",
        "sampler/mcp_docker/sandbox/confinement.py",
        "resource.RLIMIT_FSIZE: what.file_mb * _MB",
        "resource.RLIMIT_FSIZE: resource.RLIM_INFINITY",
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: open files",
        "sampler/mcp_docker/sandbox/confinement.py",
        "        resource.RLIMIT_NOFILE: what.open_files,\n",
        "",
        f"{ESCAPES}::test_an_attempt_meets_what_the_table_says",
    ),
    Mutant(
        "sandbox: the watch of the folder",
        "sampler/mcp_docker/sandbox/watch.py",
        "        if size > self._bounds.folder_mb * _MB:",
        "        if False:",
        f"{SANDBOX}::test_a_limit_ends_the_process_and_is_named",
    ),
    Mutant(
        "sandbox: open files without a name are counted",
        "sampler/mcp_docker/sandbox/watch.py",
        " + unlinked_bytes(alive)",
        "",
        f"{SANDBOX}::test_a_limit_ends_the_process_and_is_named",
    ),
    Mutant(
        "sandbox: the sum of processor time",
        "sampler/mcp_docker/sandbox/watch.py",
        "if self._cpu_s > self._bounds.cpu_s:",
        "if False:",
        f"{SANDBOX}::test_a_limit_ends_the_process_and_is_named",
    ),
    Mutant(
        "sandbox: lifetime",
        "sampler/mcp_docker/sandbox/watch.py",
        "if now >= self._end:",
        "if False:",
        f"{SANDBOX}::test_a_limit_ends_the_process_and_is_named",
    ),
    Mutant(
        "sandbox: output",
        "sampler/mcp_docker/sandbox/processes.py",
        "if self._bytes > self.most_bytes:",
        "if False:",
        f"{SANDBOX}::test_a_limit_ends_the_process_and_is_named",
    ),
    Mutant(
        "sandbox: descriptors are closed",
        "sampler/mcp_docker/sandbox/confinement.py",
        "    os.closerange(3 if kept is None else kept + 1, _MOST_DESCRIPTORS)\n",
        "",
        f"{FORKS}::test_a_forked_warden_confines_a_function_and_closes_descriptors",
    ),
    Mutant(
        "sandbox: what a killed gateway left is found by its mark",
        "sampler/mcp_docker/sandbox/folders.py",
        "            return len(killed)\n        if time",
        "            return len(killed)\n        found = set()\n        if time",
        f"{SANDBOX}::test_a_killed_gateway_leaves_nothing_after_the_next_ones_start",
    ),
    Mutant(
        "tools: a symbolic link is not followed",
        "sampler/mcp_docker/tools/beneath.py",
        "flags | os.O_NOFOLLOW | os.O_NONBLOCK",
        "flags | os.O_NONBLOCK",
        f"{TOOLS}::test_no_path_leads_out_of_the_workspace",
    ),
    Mutant(
        "tools: a redirect is checked",
        "sampler/mcp_docker/tools/fetch.py",
        "if not _names(self._allow, host, port, _PORTS[url.scheme]):",
        "if False:",
        f"{TOOLS}::test_fetch_reads_allowed_hosts_and_checks_every_redirect",
    ),
    Mutant(
        "tools: a private address is refused",
        "sampler/mcp_docker/tools/fetch.py",
        "                if not _is_public(str(address[0])):",
        "                if False:",
        f"{TOOLS}::test_a_private_address_is_refused_even_if_its_name_is_allowed",
    ),
    Mutant(
        "tools: Python code that ignores SIGINT is killed",
        "sampler/mcp_docker/tools/python.py",
        '        self._end()\n        return f"killed after',
        '        return f"killed after',
        f"{TOOLS}::test_python_code_that_does_not_return_is_ended",
    ),
    Mutant(
        "tools: SQL attaches no other file",
        "sampler/mcp_docker/tools/sql.py",
        "        connection.set_authorizer(_is_allowed)\n",
        "",
        f"{TOOLS}::test_sql_reads_within_bounds_and_writes_nothing",
    ),
    Mutant(
        "a gateway is full at its capacity",
        "sampler/mcp_docker/pool.py",
        "if self.in_use + self.ending >= self.capacity:",
        "if False:",
        f"{GATEWAY_BUSY}::test_a_session_above_the_capacity_is_told_when_to_ask_again",
    ),
    Mutant(
        "a request needs the gateway's token",
        "sampler/mcp_docker/app.py",
        "        if self._token is None:\n            return\n",
        "        return\n",
        f"{GATEWAY}::test_only_the_right_token_is_served",
    ),
    Mutant(
        "a silent session of the gateway ends with its lease",
        "sampler/mcp_docker/sessions.py",
        "if silent_s > (self.rules.broken_s if session.is_broken else self.rules.lease_s):",
        "if False:",
        f"{GATEWAY}::test_a_silent_session_ends_with_its_lease_and_a_busy_one_does_not",
    ),
    Mutant(
        "a session whose client was killed ends soon",
        "sampler/mcp_docker/delivery.py",
        "                self._session.is_broken = True\n",
        "",
        f"{GATEWAY}::test_a_killed_client_leaves_nothing_after_the_time_for_broken_connections",
    ),
    Mutant(
        "GPUs: one is not given twice",
        "scripts/launch/placement.py",
        "    _check_overlaps(chosen)\n",
        "",
        "tests/test_placement.py::test_gpus_of_several_policies_are_kept_apart",
    ),
    Mutant(
        "GPUs: an engine on a trainer's GPU takes turns",
        "scripts/launch/placement.py",
        "_device_of(trainers[0]) if trainers else None",
        "None",
        "tests/test_placement.py::test_what_is_given_is_taken",
    ),
)
