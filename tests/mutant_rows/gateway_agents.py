"""Protections of agents that a sampler starts: functions and commands."""

from tests.mutant_rows.mutant import Mutant

AGENTS = "tests/sampler/gateway/test_agent_sampler.py"
CRASH = "tests/sampler/gateway/test_agent_crash.py"
ISOLATION = "tests/sampler/gateway/test_agent_isolation.py"
LEFT = "tests/sampler/gateway/test_agent_left.py"
LIMITS = "tests/sampler/gateway/test_agent_limits.py"

MUTANTS = (
    Mutant(
        "a crash before any reply is no score",
        "sampler/gateway/crash.py",
        'if rule == "retry" or not evidence.replies:',
        'if rule == "retry":',
        f"{AGENTS}::test_a_crash_or_a_lost_reply_is_never_a_score",
    ),
    Mutant(
        "a crash after a refused request is no score",
        "sampler/gateway/crash.py",
        "    if evidence.unanswered or crash.outside:",
        "    if crash.outside:",
        f"{CRASH}::test_a_crash_with_another_cause_than_the_reply_is_no_score",
    ),
    Mutant(
        "a crash by the machine is no score",
        "sampler/gateway/crash.py",
        "    if evidence.unanswered or crash.outside:",
        "    if evidence.unanswered:",
        f"{CRASH}::test_a_command_that_fails_after_a_reply_is_judged_by_how_it_ended",
    ),
    Mutant(
        "a final score counts after the episode's time",
        "sampler/core/episode/episode.py",
        "    score = sampler.episode.final_score\n    if score is None:",
        "    score = None\n    if score is None:",
        f"{CRASH}::test_a_final_score_counts_whatever_the_agent_does_then",
    ),
    Mutant(
        "many scored crashes are an alarm",
        "sampler/core/episode/episode.py",
        "    sampler.resources.model_acts.ended(sampler.episode.acts)\n",
        "",
        f"{CRASH}::test_the_process_that_plays_tells_of_many_scored_crashes",
    ),
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
        "    if count > most:\n        raise",
        "    if False:\n        raise",
        f"{AGENTS}::test_bodies_and_the_number_of_requests_are_bounded",
    ),
    Mutant(
        "an agent's processes end with its command",
        "sampler/gateway/child.py",
        "            await asyncio.shield(running.end())",
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
        "an isolated agent runs in its sandbox",
        "sampler/gateway/agent_sampler.py",
        "            isolated=isolated,\n",
        "            isolated=None,\n",
        f"{ISOLATION}::test_a_command_sees_neither_other_attempts_nor_the_samplers_secrets",
    ),
    Mutant(
        "a task names no file that an isolated agent may read",
        "sampler/gateway/agent_sandbox.py",
        "files_named_in((program, *command[1:]))",
        "files_named_in((program, *words[1:]))",
        f"{ISOLATION}::test_a_task_cannot_name_a_file_to_be_read",
    ),
    Mutant(
        "an isolated agent reaches the gateway alone if the settings say so",
        "sampler/gateway/agent_sandbox.py",
        "            network=not self._has_own_network,\n",
        "            network=True,\n",
        f"{ISOLATION}::test_a_command_reaches_the_machines_network_or_the_gateway_alone",
    ),
    Mutant(
        "a client that leaves behind the relay leaves the gateway",
        "sampler/gateway/relay.py",
        "        target.write_eof()\n",
        "        pass\n",
        f"{ISOLATION}::test_a_client_behind_the_relay_that_leaves_aborts_its_request",
    ),
    Mutant(
        "an isolated agent's limit is named",
        "sampler/gateway/agent_sampler.py",
        "        if ended.exceeded:\n",
        "        if False:\n",
        f"{LIMITS}::test_a_limit_ends_the_attempt_and_is_named",
    ),
    Mutant(
        "a limit that the kernel keeps is named",
        "shared/sandbox/watch.py",
        "        if status and (reason := ",
        "        if False and (reason := ",
        f"{LIMITS}::test_a_limit_ends_the_attempt_and_is_named",
    ),
    Mutant(
        "a limit that the kernel keeps by a refusal is named",
        "sampler/gateway/agent_sandbox.py",
        '(self._perhaps(status, stderr) if status else "")',
        '""',
        f"{LIMITS}::test_a_limit_ends_the_attempt_and_is_named",
    ),
    Mutant(
        "a sampler removes what a killed one left of its agents",
        "shared/sandbox/folders.py",
        "    stale = await reap_left_over(mine)\n",
        "    stale = StaleState()\n",
        f"{LEFT}::test_a_killed_sampler_leaves_nothing_after_the_next_ones_start",
    ),
    Mutant(
        "samplers have state folders of their own",
        "shared/sandbox/folders.py",
        "            with contextlib.suppress(StateFolderTaken):\n                free.append(_locked(folder))",
        "            free.append(folder)",
        f"{LEFT}::test_a_killed_sampler_leaves_nothing_after_the_next_ones_start",
    ),
    Mutant(
        "a level that is not there is refused at the sampler's start",
        "sampler/core/service/service.py",
        "        await self._resources.opened.begin()\n",
        "",
        f"{ISOLATION}::test_a_level_that_is_not_there_is_refused_at_the_samplers_start",
    ),
    Mutant(
        "a link that an agent left is kept as a link",
        "sampler/gateway/kept_files.py",
        "            os.symlink(os.readlink(name, dir_fd=source), target)\n",
        '            shutil.copy(f"/proc/self/fd/{source}/{name}", target)\n',
        f"{LEFT}::test_files_are_kept_and_neither_links_nor_rights_reach_further",
    ),
    Mutant(
        "what an agent left is kept up to a size",
        "sampler/gateway/kept_files.py",
        "if self._budget < 0:",
        "if False:",
        f"{LEFT}::test_a_directory_that_is_too_large_is_not_kept",
    ),
    Mutant(
        "entries of a folder that an agent left are counted while it is listed",
        "sampler/gateway/kept_files.py",
        "                self._take(_NAME_BYTES)\n",
        "",
        f"{LEFT}::test_a_folder_of_too_many_entries_is_refused_while_it_is_listed",
    ),
    Mutant(
        "copying what an agent left has a bound of its own",
        "sampler/gateway/kept_files.py",
        "if time.monotonic() > self._until:",
        "if False:",
        f"{LEFT}::test_a_directory_that_is_too_large_is_not_kept",
    ),
    Mutant(
        "copying what an agent left is not its time",
        "sampler/gateway/agent_sandbox.py",
        "            async with uncounted():\n",
        "            if True:\n",
        f"{ISOLATION}::test_copying_files_out_is_not_the_agents_time",
    ),
)
