"""Protections of the processes of agents that a sampler starts: preloaded interpreters, folders, limits of the machine."""

from tests.mutant_rows.mutant import Mutant

ISOLATION = "tests/sampler/gateway/test_agent_isolation.py"
LEFT = "tests/sampler/gateway/test_agent_left.py"
PRELOAD = "tests/sampler/gateway/test_preload.py"
PRELOAD_ENDS = "tests/sampler/gateway/test_preload_ends.py"

MUTANTS = (
    Mutant(
        "a fork outside of the sandbox is refused",
        "sampler/gateway/config.py",
        "        if self.agent_preload and self.isolation is not None:\n",
        "        if False:\n",
        f"{ISOLATION}::test_settings_that_do_not_fit_are_refused",
    ),
    Mutant(
        "reaping spares a living session with the same user",
        "shared/sandbox/folders.py",
        "and not is_of_a_living_gateway(user)",
        "and user",
        f"{LEFT}::test_reaping_spares_a_living_session_that_has_the_same_user",
    ),
    Mutant(
        "preloaded packages that start threads are refused",
        "shared/forks/server.py",
        "    if others:\n",
        "    if False:\n",
        f"{PRELOAD}::test_what_cannot_be_preloaded_is_refused_with_the_reason",
    ),
    Mutant(
        "each fork draws its own numbers",
        "shared/forks/server.py",
        "        numbers.seed(seed)",
        "        pass",
        f"{PRELOAD}::test_modules_are_loaded_once_and_scripts_draw_different_numbers",
    ),
    Mutant(
        "a preloaded interpreter that was killed is started again",
        "sampler/gateway/preload.py",
        "if not self._lives():",
        "if self._server is None:",
        f"{PRELOAD_ENDS}::test_a_killed_server_fails_its_scripts_and_the_next_starts_another",
    ),
    Mutant(
        "a fork ends as the interpreter does",
        "shared/forks/server.py",
        "        atexit._run_exitfuncs()\n",
        "",
        f"{PRELOAD}::test_a_script_does_what_it_does_from_the_command_line",
    ),
    Mutant(
        "a fork's processes end with it",
        "shared/forks/server.py",
        'self._guard.keep(connection.detach(), lambda: None, lambda: _run(request["arguments"]), leave_s=_LEAVE_S)',
        '_run(request["arguments"])',
        f"{PRELOAD_ENDS}::test_all_processes_of_a_script_end_with_its_episode",
    ),
    Mutant(
        "a forked script is not killed by a closed pipe",
        "shared/forks/server.py",
        "        signal.signal(number, signal.SIG_IGN)\n    _seed()",
        "        pass\n    _seed()",
        f"{PRELOAD}::test_a_script_does_what_it_does_from_the_command_line",
    ),
    Mutant(
        "a process of a package is no script",
        "shared/forks/server.py",
        "                if pid in self.running:",
        "                if True:",
        f"{PRELOAD}::test_a_process_that_a_package_starts_is_not_taken_for_a_script",
    ),
    Mutant(
        "a cancelled start leaves no half-loaded server",
        "sampler/gateway/preload.py",
        "            await asyncio.shield(self._end())\n            raise\n",
        "            raise\n",
        f"{PRELOAD_ENDS}::test_a_cancelled_start_leaves_no_half_loaded_server",
    ),
    Mutant(
        "scripts run where more than a thousand files are open",
        "shared/processes/guard.py",
        "    return [ready for ready, _ in waiting.poll(None if timeout_s is None else 1000 * timeout_s)]",
        "    return select.select(descriptors, [], [], timeout_s)[0]  # noqa: TID251",
        f"{PRELOAD_ENDS}::test_scripts_run_where_more_than_a_thousand_files_are_open",
    ),
    Mutant(
        "the folder of a killed sampler is removed",
        "shared/processes/temporary.py",
        "            remove_left(prefix)\n",
        "            pass\n",
        f"{PRELOAD_ENDS}::test_the_folder_of_a_killed_sampler_is_removed_by_the_next",
    ),
    Mutant(
        "the folder of a living sampler stays",
        "shared/processes/temporary.py",
        "            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        f"{PRELOAD_ENDS}::test_the_folder_of_a_killed_sampler_is_removed_by_the_next",
    ),
    Mutant(
        "files that become links",
        "sampler/gateway/kept_files.py",
        "descriptor = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)",
        "descriptor = os.open(name, flags, dir_fd=folder)",
        f"{LEFT}::test_files_that_become_links_are_not_followed",
    ),
    Mutant(
        "one entry costs no other",
        "sampler/gateway/kept_files.py",
        "if exc.errno in _FULL:",
        "if True:",
        f"{LEFT}::test_one_entry_that_cannot_be_kept_costs_no_other_and_files_are_ours_alone",
    ),
    Mutant(
        "what a killed warden left without its mark",
        "shared/sandbox/processes.py",
        "await asyncio.to_thread(self._end_left)",
        "pass",
        f"{LEFT}::test_a_killed_warden_leaves_nothing_that_hid_its_mark",
    ),
    Mutant(
        "the folder of a Python is not opened",
        "sampler/gateway/agent_sandbox.py",
        'return [program, program.parent.parent / "lib"]',
        "return [program.parent.parent]",
        f"{ISOLATION}::test_what_a_command_names_may_be_read_with_its_virtual_environment",
    ),
    Mutant(
        "a shortage is no wrong setting",
        "sampler/gateway/child.py",
        "exc.errno not in _WRONG_COMMAND:",
        "False:",
        "tests/sampler/gateway/test_agent_shortages.py::test_what_may_pass_is_no_wrong_setting",
    ),
    Mutant(
        "a full disk under an agent's output",
        "sampler/gateway/child.py",
        "stored = _written(stored, piece[:remaining])",
        "stored.write(piece[:remaining])",
        "tests/sampler/gateway/test_agent_shortages.py::test_a_full_disk_costs_the_output_that_is_kept_alone",
    ),
    Mutant(
        "what the machine kills for its memory exceeded no limit",
        "shared/sandbox/watch.py",
        " and _has_reached(cgroup, bounds.memory_mb * _MB):",
        ":",
        "tests/shared/sandbox/test_left_to_the_machine.py::test_a_process_that_the_machine_killed_for_its_memory_exceeded_no_limit",
    ),
    Mutant(
        "a state folder is locked itself",
        "shared/sandbox/folders.py",
        "os.open(state_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),",
        'os.memfd_create("none"),',
        "tests/shared/sandbox/test_left_to_the_machine.py::test_a_cleaner_of_temporary_files_frees_no_state_folder",
    ),
    Mutant(
        "a container's HOME is not its engine's client's",
        "shared/sandbox/containers.py",
        'return f"{name}={value}" if name == "HOME" else name',
        "return name",
        "tests/shared/sandbox/test_left_to_the_machine.py::test_a_container_has_its_own_home_and_no_value_of_a_variable_is_an_argument",
    ),
    Mutant(
        "folders of a killed sampler's commands are removed",
        "sampler/gateway/workplace.py",
        "        _remove_left_once()\n",
        "",
        "tests/sampler/gateway/test_killed_samplers.py::test_the_folder_of_a_killed_samplers_command_is_removed_by_the_next_one",
    ),
    Mutant(
        "a sampler may open many files",
        "sampler/core/service/serve.py",
        "        require_files()",
        "        pass",
        "tests/sampler/gateway/test_killed_samplers.py::test_a_sampler_may_open_as_many_files_as_its_user",
    ),
)
