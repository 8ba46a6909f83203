"""Protections of the bundled worlds: what statements and scripts of a model must not reach, take or win by."""

from tests.mutant_rows.mutant import Mutant

DATABASE = "tests/sampler/environments/test_database.py"
SHELL = "tests/sampler/environments/test_shell.py"
WEB = "tests/system/test_web_recipe.py"
SQLITE = "sampler/environments/adapters/sqlite_database.py"

MUTANTS = (
    Mutant(
        "database: no other file and no setting",
        SQLITE,
        "if action in _DENIED or (action == sqlite3.SQLITE_PRAGMA and first not in _PRAGMAS):",
        "if False:",
        f"{DATABASE}::test_a_statement_reaches_no_file_no_setting_and_no_other_database",
    ),
    Mutant(
        "database: time of a statement",
        SQLITE,
        "int(time.monotonic() > self._until)",
        "0",
        f"{DATABASE}::test_no_statement_takes_longer_or_more_than_it_may",
    ),
    Mutant(
        "database: functions that count for seconds in one step",
        SQLITE,
        '    *("printf", "format"),',
        '    *("format",),',
        f"{DATABASE}::test_what_sqlite_does_in_one_step_without_looking_at_the_clock_is_short",
    ),
    Mutant(
        "database: characters that trim looks for",
        SQLITE,
        "if len(looked_for) > MAX_TRIM_CHARS:",
        "if False:",
        f"{DATABASE}::test_what_sqlite_does_in_one_step_without_looking_at_the_clock_is_short",
    ),
    Mutant(
        "database: steps between two looks at the clock",
        SQLITE,
        "_STEPS = 50  #",
        "_STEPS = 1_000  #",
        f"{DATABASE}::test_what_sqlite_does_in_one_step_without_looking_at_the_clock_is_short",
    ),
    Mutant(
        "database: memory of statements",
        SQLITE,
        '        self._db.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")\n',
        "",
        f"{DATABASE}::test_no_statement_takes_longer_or_more_than_it_may",
    ),
    Mutant(
        "database: only what was committed counts",
        SQLITE,
        "            if self._db.in_transaction:\n                self._db.rollback()\n",
        "",
        f"{DATABASE}::test_a_change_counts_by_the_state_that_was_committed_and_not_by_how_it_was_reached",
    ),
    Mutant(
        "worlds: actions of one reply",
        "sampler/environments/adapters/acting.py",
        "        if number >= MAX_ACTIONS:\n",
        "        if False:\n",
        f"{DATABASE}::test_a_reply_that_is_wrong_is_told_and_turns_end",
    ),
    Mutant(
        "worlds: turns of an episode",
        "sampler/environments/adapters/acting.py",
        "if self._turns >= self._max_turns:",
        "if False:",
        f"{DATABASE}::test_a_reply_that_is_wrong_is_told_and_turns_end",
    ),
    Mutant(
        "shell: limits of a command",
        "sampler/environments/adapters/shell.py",
        "cpu_s=10.0, memory_mb=256, processes=32, file_mb=16, folder_mb=32, output_mb=4, lifetime_s=lifetime_s",
        "lifetime_s=lifetime_s",
        f"{SHELL}::test_no_script_does_more_than_it_may_and_the_session_goes_on",
    ),
    Mutant(
        "shell: time of a command",
        "sampler/environments/adapters/shell.py",
        "lifetime_s = max(0.5, within_s)",
        "lifetime_s = 1000.0",
        f"{SHELL}::test_no_script_does_more_than_it_may_and_the_session_goes_on",
    ),
    Mutant(
        "environments: a model that repeats itself is stopped",
        "sampler/core/kinds/conversation.py",
        "        if turn is not None and self._is_repetition(turn):\n",
        "        if False:\n",
        "tests/sampler/environments/test_sampler.py::test_a_model_that_repeats_itself_is_stopped_as_in_other_episodes",
    ),
    Mutant(
        "environments: requests that a busy worker cannot read wait outside of its pipe",
        "sampler/environments/worker_process.py",
        "                    await self._process.stdin.drain()\n",
        "",
        "tests/sampler/environments/test_worker_pipe.py::test_requests_to_a_busy_worker_wait_outside_of_its_pipe",
    ),
    Mutant(
        "web: an episode clicks on its own page",
        "assets/recipes/web/server.py",
        "await self._show(self._pages[episode])",
        "await self._show(self._shown)",
        f"{WEB}::test_each_episode_has_a_page_of_its_own_and_sees_what_the_warm_up_draws",
    ),
    Mutant(
        "web: a wrong link leads to no code",
        "assets/recipes/web/site.py",
        'return "page" if path == ROUTE[: len(path)] else f"lost {self.wrong_code}"',
        'return f"code {self.code}"',
        f"{WEB}::test_a_wrong_link_leads_to_no_code_and_a_click_beside_all_links_to_the_same_page",
    ),
    Mutant(
        "web: the browser ends with its server",
        "scripts/chromium.py",
        "await start_process(command)",
        '__import__("types").SimpleNamespace(process=await asyncio.create_subprocess_exec(*command.words, env=command.env))',
        f"{WEB}::test_the_browser_ends_with_its_server",
    ),
    Mutant(
        "web: the first demonstrations are right",
        "assets/recipes/web/make.py",
        "x, y = site.links(path)[0].middle",
        "x, y = site.links(path)[1].middle",
        f"{WEB}::test_the_first_demonstrations_are_of_pages_that_are_not_held_out_and_right",
    ),
)
