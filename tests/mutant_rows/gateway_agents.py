"""Protections of agents that a sampler starts: functions and commands."""

from tests.mutant_rows.mutant import Mutant

AGENTS = "tests/sampler/gateway/test_agent_sampler.py"
PRELOAD = "tests/sampler/gateway/test_preload.py"

MUTANTS = (
    Mutant(
        "an agent that goes on without a reply is not scored",
        "sampler/gateway/session.py",
        "            self.failure = self.failure or exc\n",
        "",
        f"{AGENTS}::test_a_crash_or_a_lost_reply_is_never_a_score",
    ),
    Mutant(
        "requests end with the attempt",
        "sampler/gateway/session.py",
        "        for task in running:\n            task.cancel()\n",
        "        running.clear()\n",
        f"{AGENTS}::test_a_request_that_runs_when_the_agent_returns_is_cancelled",
    ),
    Mutant(
        "a key ends with its attempt",
        "sampler/gateway/server.py",
        "            del self._sessions[key_hash(key)]\n",
        "",
        f"{AGENTS}::test_a_key_ends_with_its_attempt_and_no_document_contains_it",
    ),
    Mutant(
        "bodies are bounded",
        "sampler/gateway/app.py",
        "if len(body) > MAX_BODY_BYTES:",
        "if len(body) < 0:",
        f"{AGENTS}::test_bodies_and_the_number_of_requests_are_bounded",
    ),
    Mutant(
        "an agent's processes end with its command",
        "sampler/gateway/child.py",
        "            await asyncio.shield(end_process(child))",
        "            pass",
        f"{AGENTS}::test_a_command_ends_with_its_episodes_time",
    ),
    Mutant(
        "an agent's last words are kept whole",
        "sampler/gateway/child.py",
        "tail = (tail + piece)",
        "tail = piece",
        f"{AGENTS}::test_last_words_in_many_pieces_are_told_whole",
    ),
    Mutant(
        "preloaded packages that start threads are refused",
        "sampler/gateway/preload/fork_server.py",
        "    if others:\n",
        "    if False:\n",
        f"{PRELOAD}::test_what_cannot_be_preloaded_is_refused_with_the_reason",
    ),
    Mutant(
        "each fork draws its own numbers",
        "sampler/gateway/preload/fork_server.py",
        "        numbers.seed(seed)",
        "        pass",
        f"{PRELOAD}::test_modules_are_loaded_once_and_scripts_draw_different_numbers",
    ),
    Mutant(
        "a preloaded interpreter that was killed is started again",
        "sampler/gateway/preload/interpreters.py",
        "if not self._lives():",
        "if self._server is None:",
        f"{PRELOAD}::test_a_killed_server_fails_its_scripts_and_the_next_starts_another",
    ),
    Mutant(
        "a fork ends as the interpreter does",
        "sampler/gateway/preload/fork_server.py",
        "        atexit._run_exitfuncs()\n",
        "",
        f"{PRELOAD}::test_a_script_does_what_it_does_from_the_command_line",
    ),
    Mutant(
        "a fork's processes end with it",
        "sampler/gateway/preload/fork_server.py",
        'self._guard.keep(connection.detach(), lambda: None, lambda: _run(request["arguments"]), leave_s=_LEAVE_S)',
        '_run(request["arguments"])',
        f"{PRELOAD}::test_all_processes_of_a_script_end_with_its_episode",
    ),
    Mutant(
        "a forked script is not killed by a closed pipe",
        "sampler/gateway/preload/fork_server.py",
        "        signal.signal(number, signal.SIG_IGN)\n    _seed()",
        "        pass\n    _seed()",
        f"{PRELOAD}::test_a_script_does_what_it_does_from_the_command_line",
    ),
    Mutant(
        "a process of a package is no script",
        "sampler/gateway/preload/fork_server.py",
        "self._running.pop(pid, None)",
        "self._running.pop(pid)",
        f"{PRELOAD}::test_a_process_that_a_package_starts_is_not_taken_for_a_script",
    ),
    Mutant(
        "a cancelled start leaves no half-loaded server",
        "sampler/gateway/preload/interpreters.py",
        "            await asyncio.shield(self._end())\n            raise\n",
        "            raise\n",
        f"{PRELOAD}::test_a_cancelled_start_leaves_no_half_loaded_server",
    ),
)
