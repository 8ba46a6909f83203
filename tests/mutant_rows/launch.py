"""Protections of the launcher: nodes, GPUs and logs."""

from tests.mutant_rows.mutant import Mutant

KINDS = "tests/system/test_launch_two_kinds.py"

PROPOSAL = "tests/tandem/plan/test_proposal.py"
RANK, GPU_PLAN = "tests/tandem/plan/test_rank_memory.py", "tests/tandem/plan/test_gpu_plan.py"

MUTANTS = (
    Mutant(
        "the disk forecast leaves out what settings bound",
        "scripts/tandem/launch/disk_forecast.py",
        "for part in UNBOUNDED",
        "for part in use",
        "tests/system/test_launch_disk_forecast.py::test_what_settings_bound_does_not_count_and_a_resume_begins_anew",
    ),
    Mutant(
        "plan: what is given stays",
        "scripts/tandem/plan/proposal.py",
        'if "groups_per_step" not in given:',
        "if True:",
        f"{PROPOSAL}::test_what_is_given_stays",
    ),
    Mutant(
        "plan: the settings of a given YAML stay",
        "scripts/tandem/plan/__main__.py",
        " if _place_of(section, setting) is None}",
        "}",
        "tests/tandem/plan/test_plan_command.py::test_a_configuration_that_is_given_is_completed_and_not_replaced",
    ),
    Mutant(
        "plan: what does not fit is not proposed",
        "scripts/tandem/plan/proposal.py",
        "if one[-1].total <= room",
        "if True",
        f"{PROPOSAL}::test_memory_decides_what_is_trained",
    ),
    Mutant(
        "plan: small steps are proposed",
        "scripts/tandem/plan/proposal.py",
        "step = replace(step, groups=GROUPS)",
        "pass",
        f"{PROPOSAL}::test_small_steps_are_proposed",
    ),
    Mutant(
        "plan for GPUs: experts that the shards do not divide are cut inside",
        "scripts/tandem/plan/rank_sizes.py",
        "(rows, width // shards) if divides else",
        "(rows, width // shards) if False else",
        f"{RANK}::test_the_trainers_own_code_would_hold_what_is_predicted",
    ),
    Mutant(
        "plan for GPUs: layers keep their activations unless they are computed again",
        "scripts/tandem/plan/rank_memory.py",
        "kept = inputs if row.checkpointing else saved",
        "kept = inputs",
        f"{RANK}::test_a_step_on_an_h200_took_what_is_predicted",
    ),
    Mutant(
        "plan for GPUs: what is offloaded is on the host",
        "scripts/tandem/plan/rank_sizes.py",
        "if not self.row.optimizer_offload:",
        "if True:",
        f"{RANK}::test_what_is_offloaded_is_on_the_host",
    ),
    Mutant(
        "plan for GPUs: a layout that does not fit is not proposed",
        "scripts/tandem/plan/layouts.py",
        "self.memory.total <= self.fleet.memory and self.engine.sequences > 0 and self.host <= self.fleet.host",
        "self.engine.sequences > 0",
        f"{GPU_PLAN}::test_memory_decides_and_what_does_not_fit_is_not_proposed",
    ),
    Mutant(
        "plan for GPUs: what is given stays",
        "scripts/tandem/plan/layouts.py",
        "for n in range(1, fleet.gpus) if given.trainer_gpus in (None, n)",
        "for n in range(1, fleet.gpus)",
        f"{GPU_PLAN}::test_what_is_given_stays",
    ),
    Mutant(
        "plan for GPUs: engines have the GPUs that the trainer has not",
        "scripts/tandem/plan/gpu_command.py",
        "first = plan.engine.gpus, 0 if plan.turns else plan.trainer_gpus",
        "first = plan.engine.gpus, 0",
        f"{GPU_PLAN}::test_a_launch_takes_the_printed_settings",
    ),
    Mutant(
        "threads of a larger model: processes of a kind have the cores between them",
        "scripts/tandem/launch/threads.py",
        "// max(1, processes)",
        "",
        "tests/system/test_launch_threads.py::"
        "test_processes_of_a_larger_model_have_the_cores_of_the_machine_between_them",
    ),
    Mutant(
        "memory of a larger model: what the environment says wins",
        "scripts/tandem/launch/threads.py",
        " if variable not in os.environ}",
        "}",
        "tests/system/test_launch_threads.py::test_what_the_environment_says_wins",
    ),
    Mutant(
        "threads of a larger model: the trainer gets them too",
        "scripts/tandem/launch/services.py",
        "commands.trainer_environment(config, database) | threads",
        "commands.trainer_environment(config, database)",
        "tests/system/test_launch_threads.py::"
        "test_engine_and_trainer_get_them_and_sleep_while_they_wait_and_a_sampler_does_not",
    ),
    Mutant(
        "two kinds of engine: each is named once",
        "scripts/tandem/launch/launched_engines.py",
        "if len(set(kinds)) < len(kinds):",
        "if False:",
        f"{KINDS}::test_a_list_that_names_no_engines_to_start_is_refused",
    ),
    Mutant(
        "two kinds of engine: none stands alone",
        "scripts/tandem/launch/launched_engines.py",
        'if len(kinds) > 1 and (alone := {"auto", "none"} & set(kinds)):',
        "if False:",
        f"{KINDS}::test_a_list_that_names_no_engines_to_start_is_refused",
    ),
    Mutant(
        "auto: vLLM only where the processor multiplies bfloat16",
        "scripts/tandem/launch/launched_engines.py",
        "VLLM_ON_A_CPU.is_file() and _multiplies_bfloat16()",
        "VLLM_ON_A_CPU.is_file()",
        f"{KINDS}::test_auto_is_vllm_where_it_is_installed_and_the_processor_is_fast_with_it_else_the_default",
    ),
    Mutant(
        "two kinds of engine: flags are of one of them",
        "scripts/tandem/launch/launched_engines.py",
        'len({"sglang", "vllm"} & set(self.kinds)) != 1:',
        'not {"sglang", "vllm"} & set(self.engine):',
        f"{KINDS}::test_a_list_that_names_no_engines_to_start_is_refused",
    ),
    Mutant(
        "two kinds of engine: sizes are the local engine's",
        "scripts/tandem/launch/commands.py",
        '*(size if kind == "local" else ()),',
        "*size,",
        f"{KINDS}::test_each_kind_gets_a_keeper_and_the_options_that_are_its_own",
    ),
    Mutant(
        "two kinds of engine: one kind has the GPUs",
        "scripts/tandem/launch/placing.py",
        "if placement.engines and len(config.engine) > 1:",
        "if False:",
        f"{KINDS}::test_on_gpus_one_kind_has_them",
    ),
    Mutant(
        "a child that failed is not forgiven by a later stop",
        "scripts/tandem/launch/children.py",
        "child.may_exit |= child.returncode is None",
        "child.may_exit = True",
        "tests/system/test_launch_children.py::test_a_trainer_may_end_itself_but_not_with_an_error",
    ),
    Mutant(
        "a trainer's failure is the launch's",
        "scripts/tandem/launch/children.py",
        "        if status and not child.may_exit:",
        "        if status == 7:",
        "tests/system/test_launch_children.py::test_a_trainer_may_end_itself_but_not_with_an_error",
    ),
    Mutant(
        "clients of a dead database are stopped at once",
        "scripts/tandem/launch/children.py",
        "CLIENTS_OF_NOTHING_S = 3.0",
        "CLIENTS_OF_NOTHING_S = 600.0",
        "tests/system/test_launch_causes.py"
        "::test_a_database_on_a_full_disk_is_the_cause_and_its_clients_are_stopped_at_once",
    ),
    Mutant(
        "tests: a caller's variables are taken away",
        "tests/surroundings.py",
        "            del environment[name]",
        "            pass",
        "tests/test_surroundings.py::test_a_callers_variables_are_taken_away_but_for_those_that_are_listed",
    ),
    Mutant(
        "a second SIGTERM does not end the grace",
        "scripts/tandem/launch/waiting.py",
        "if event.is_set() and number == signal.SIGINT:",
        "if event.is_set():",
        "tests/system/test_launch_joining.py::test_only_ctrl_c_after_a_signal_ends_the_grace",
    ),
    Mutant(
        "torchrun's own store keeps its port",
        "scripts/tandem/launch/nodes.py",
        """ + (environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")""",
        "",
        "tests/system/test_launch_nodes.py::test_torchrun_itself_starts_a_launcher_per_machine_which_keeps_off_its_store",
    ),
    Mutant(
        "children do not get the launcher's rank under torchrun",
        "scripts/tandem/launch/children.py",
        " or is_of_torchrun(name)",
        "",
        "tests/system/test_launch_nodes.py::test_children_do_not_inherit_the_launchers_rank_under_torchrun",
    ),
    Mutant(
        "a machine that is not the first stays until the last version was evaluated",
        "scripts/tandem/launch/following.py",
        "return not held_out or await EvalRound(store, policy, newest.version).is_complete()",
        "return True",
        "tests/system/test_launch_joining.py::"
        "test_a_run_is_over_when_its_trainer_has_ended_and_its_last_version_was_evaluated",
    ),
    Mutant(
        "own code: a log is read in bounded time",
        "scripts/tandem/launch/errors.py",
        "max(self._at, size - MAX_BYTES)",
        "self._at",
        "tests/system/test_launch_errors.py::test_a_log_is_read_by_whole_lines_from_its_start_on_and_in_bounded_time",
    ),
    Mutant(
        "GPUs: one is not given twice",
        "scripts/tandem/launch/placement.py",
        "    _check_overlaps(chosen)\n",
        "",
        "tests/test_placement.py::test_gpus_of_several_policies_are_kept_apart",
    ),
    Mutant(
        "GPUs: an engine on a trainer's GPU takes turns",
        "scripts/tandem/launch/placement.py",
        "_device_of(trainers[0]) if trainers else None",
        "None",
        "tests/test_placement.py::test_what_is_given_is_taken",
    ),
)
