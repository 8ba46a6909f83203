"""Protections of MCP-Docker: its sessions, sandbox and bundled tools."""

from tests.mutant_rows.mutant import Mutant

ESCAPES = "tests/sampler/sandbox/test_escapes.py"
FORKS = "tests/sampler/sandbox/test_forked_warden.py"
LONE = "tests/sampler/sandbox/lone_tools_cases.py"
PROTOCOL = "tests/sampler/mcp_docker/test_bundled_protocol.py"
SANDBOX = "tests/sampler/sandbox/test_sandbox.py"
FETCH = "tests/sampler/sandbox/test_fetch.py"
CODE = "tests/sampler/sandbox/test_tools_of_code.py"
FILES = "tests/sampler/sandbox/test_tools_of_files.py"
GATEWAY = "tests/sampler/mcp_docker/test_gateway.py"
MODERN = "tests/sampler/mcp_docker/test_gateway_modern.py"
GATEWAY_BUSY = "tests/sampler/mcp_docker/test_gateway_busy.py"

MUTANTS = (
    Mutant(
        "sandbox: seccomp",
        "sampler/mcp_docker/sandbox/confinement.py",
        "        _filter(seccomp.program(seccomp.FAMILIES if what.network else (), processes=not alone))\n",
        "        pass\n",
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
        "        pass\n",
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
        f"{FILES}::test_no_path_leads_out_of_the_workspace",
    ),
    Mutant(
        "tools: a redirect is checked",
        "sampler/mcp_docker/tools/fetch.py",
        "if not _names(self._allow, host, port, _PORTS[url.scheme]):",
        "if False:",
        f"{FETCH}::test_fetch_reads_allowed_hosts_and_checks_every_redirect",
    ),
    Mutant(
        "tools: a private address is refused",
        "sampler/mcp_docker/tools/fetch.py",
        "                if not _is_public(str(address[0])):",
        "                if False:",
        f"{FETCH}::test_a_private_address_is_refused_even_if_its_name_is_allowed",
    ),
    Mutant(
        "tools: Python code that ignores SIGINT is killed",
        "sampler/mcp_docker/tools/python.py",
        '        self._end()\n        return f"killed after',
        '        return f"killed after',
        f"{CODE}::test_python_code_that_does_not_return_is_ended",
    ),
    Mutant(
        "tools: SQL attaches no other file",
        "sampler/mcp_docker/tools/sql.py",
        "        connection.set_authorizer(_is_allowed)\n",
        "",
        f"{FILES}::test_sql_reads_within_bounds_and_writes_nothing",
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
        "sampler/mcp_docker/http.py",
        "    if token is None:\n        return\n",
        "    return\n",
        f"{GATEWAY}::test_only_the_right_token_is_served",
    ),
    Mutant(
        "a silent session of the gateway ends with its lease",
        "sampler/mcp_docker/sessions.py",
        "if session.silent_s() > (self.rules.broken_s if is_away else self.rules.lease_s):",
        "if False:",
        f"{GATEWAY}::test_a_silent_session_ends_with_its_lease_and_a_busy_one_does_not",
    ),
    Mutant(
        "a session whose client was killed ends soon",
        "sampler/mcp_docker/delivery.py",
        "                self._session.broke_off()\n",
        "",
        f"{GATEWAY}::test_a_killed_client_leaves_nothing_after_the_time_for_broken_connections",
    ),
    Mutant(
        "a call that waits for its client's input keeps its tool processes",
        "sampler/mcp_docker/modern.py",
        "if episode is None and not session.is_needed:",
        "if episode is None:",
        f"{MODERN}::test_a_servers_question_is_a_result_and_the_repeated_call_brings_the_answer",
    ),
    Mutant(
        "input that comes too late has an answer",
        "sampler/mcp_docker/modern_session.py",
        "        if waiting.final is not None:",
        "        if False:",
        f"{MODERN}::test_a_server_that_did_not_wait_for_the_input_has_answered_nevertheless",
    ),
    Mutant(
        "a listening client's resources are subscribed to at their server",
        "sampler/mcp_docker/modern_session.py",
        'if await self._tell_server("resources/subscribe", uri):',
        "if uri:",
        f"{MODERN}::test_a_stream_tells_what_it_was_asked_to_tell_and_nothing_else",
    ),
    Mutant(
        "a progress token of a wrong type ends no server",
        "sampler/mcp_docker/modern_session.py",
        "link.in_flight.get(token) if is_id(token) else None",
        "link.in_flight.get(token)",
        "tests/sampler/mcp_docker/test_gateway_malformed.py::test_a_server_whose_notifications_have_wrong_types_goes_on",
    ),
    Mutant(
        "a client's capabilities are bounded",
        "sampler/mcp_docker/client_profile.py",
        "> MAX_CAPABILITIES_CHARS:",
        "> 1000 * MAX_CAPABILITIES_CHARS:",
        "tests/sampler/mcp_docker/test_gateway_malformed.py::test_capabilities_beyond_their_bound_are_refused",
    ),
    Mutant(
        "a fork that fails is the end of one session",
        "sampler/mcp_docker/fork_server.py",
        '        except OSError as exc:\n            print(f"a bundled tool cannot be forked',
        '        except KeyError as exc:\n            print(f"a bundled tool cannot be forked',
        "tests/sampler/mcp_docker/test_gateway_malformed.py::"
        "test_a_fork_that_fails_is_reported_as_the_end_of_that_session_alone",
    ),
    Mutant(
        "lone tools: they start no process",
        "sampler/mcp_docker/sandbox/confinement.py",
        "processes=not alone",
        "processes=True",
        f"{LONE}::test_it_starts_no_process_and_writes_no_file",
    ),
    Mutant(
        "lone tools: Landlock",
        "sampler/mcp_docker/sandbox/confinement.py",
        "        landlock.enforce(rules)\n",
        "",
        f"{LONE}::test_it_starts_no_process_and_writes_no_file",
    ),
    Mutant(
        "lone tools: the bound of lifetime",
        "sampler/mcp_docker/alone.py",
        "now >= tool.ends_at",
        "False",
        f"{LONE}::test_it_ends_at_its_limits",
    ),
    Mutant(
        "lone tools: memory where there are no cgroups",
        "sampler/mcp_docker/alone.py",
        "memory_of(pid) > bounds.memory_mb * _MB",
        "False",
        f"{LONE}::test_memory_is_looked_at_where_there_are_no_cgroups",
    ),
    Mutant(
        "lone tools: they end with a killed server",
        "sampler/mcp_docker/alone.py",
        "        prctl(PDEATHSIG, signal.SIGKILL)",
        "        pass",
        f"{LONE}::test_it_ends_with_a_killed_server",
    ),
    Mutant(
        "bundled tools: a client that does not read",
        "sampler/mcp_docker/tools/calls.py",
        "self.reading.pause_reading()",
        "pass",
        f"{PROTOCOL}::test_it_reads_no_more_while_its_client_does_not_read",
    ),
    Mutant(
        "bundled tools: a cancelled call",
        "sampler/mcp_docker/tools/connection.py",
        "                call.cancel()",
        "                pass",
        f"{PROTOCOL}::test_a_call_in_flight_leaves_room_for_others_and_is_cancelled_or_ended_with_stdin",
    ),
)
