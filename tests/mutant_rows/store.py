"""Protections of what the services share: the store, leases, users and task files."""

from tests.mutant_rows.mutant import Mutant

TASKS = "tests/shared/test_tasks.py"
BOUNDS = "tests/shared/test_task_file_bounds.py"
SETTINGS = "tests/shared/test_store_settings.py"
ADMISSION = "tests/sampler/test_admission.py"
USERS = "tests/system/test_database_users.py"
DEVICES = "tests/shared/test_leases.py"

MUTANTS = (
    Mutant(
        "a cancelled verb ends first",
        "shared/store/retry.py",
        "return await _ended_in_any_case(method(*args, **kwargs))",
        "return await method(*args, **kwargs)",
        "tests/shared/test_retry.py::test_a_cancellation_leaves_the_drivers_lock_free",
    ),
    Mutant(
        "a verb that hangs is cancelled in the end",
        "shared/store/retry.py",
        "if not await _ends(task, LET_END_S):",
        "if not await _ends(task, None):",
        "tests/shared/test_retry.py::test_a_cancellation_that_the_driver_swallows_still_ends_the_task",
    ),
    Mutant(
        "what samplers could play is bounded by the off-policy budget",
        "shared/store/questions.py",
        """, "seq": {"$lt": seq_limit}}""",
        "}",
        "tests/shared/cli/test_metrics.py::test_wanted_episodes_are_the_slots_within_the_budget_not_the_whole_queue",
    ),
    Mutant(
        "renewal of leases: the write",
        "shared/store/tasks.py",
        '        renewed = {"free_at": after(lease_s)}\n',
        "        renewed: dict[str, object] = {}\n",
        f"{TASKS}::test_renewal_keeps_a_lease_and_names_those_that_are_lost",
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
        "size of a safetensors file against its header",
        "shared/weights/tensor_file.py",
        "    if size != reached:\n",
        "    if False:\n",
        "tests/shared/test_buckets.py::test_a_file_that_cannot_be_split_is_refused",
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
        '                "$expr": IS_FREE,\n            },\n            [{"$set": {"occupants": _changed(occupant, awake)}}],',
        '            },\n            [{"$set": {"occupants": _changed(occupant, awake)}}],',
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
        "commands that read need no right to write",
        "shared/cli/status.py",
        "work, read_only=True)",
        "work)",
        f"{USERS}::test_each_service_does_its_work_with_its_own_user",
    ),
    Mutant(
        "a second server on a database's folder is refused",
        "shared/processes/mongod.py",
        "if (pid := _server_of(data)) is not None:",
        "if (pid := None) is not None:",
        "tests/shared/test_mongod.py::test_stopping_twice_is_fine_and_leaves_no_process",
    ),
    Mutant(
        "calls that make a password at once use the first one",
        "shared/cli/database.py",
        "        if only_first:\n",
        "        if False:\n",
        "tests/shared/test_cli_database.py::test_calls_that_make_a_password_at_once_use_the_same_one",
    ),
    Mutant(
        "an engine that counted as dead is waited for once it wakes",
        "shared/store/leases.py",
        '{"asleep_for": None, "free_at": after(stay_s)}',
        '{"asleep_for": None}',
        "tests/shared/test_leases.py::test_an_engine_that_counted_as_dead_is_waited_for_once_it_wakes",
    ),
)
