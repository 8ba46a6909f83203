"""Protections between samplers and environments, and of the services that play them."""

from tests.mutant_rows.mutant import Mutant

SERVICE = "tests/sampler/environments/test_service.py"
ENDS = "tests/sampler/environments/test_ends.py"
CLIENT = "tests/sampler/environments/test_client.py"
PLAYED = "tests/sampler/environments/test_sampler.py"
BUSY = "tests/sampler/environments/test_busy.py"

MUTANTS = (
    Mutant(
        "environments: bound of sessions",
        "sampler/environments/sessions.py",
        "if len(self) >= self.rules.capacity:",
        "if False:",
        f"{SERVICE}::test_a_full_service_says_busy_and_has_room_again_after_an_end",
    ),
    Mutant(
        "environments: bound of starts at once",
        "sampler/environments/sessions.py",
        "asyncio.Semaphore(rules.max_starting)",
        "asyncio.Semaphore(1000)",
        f"{SERVICE}::test_only_so_many_sessions_start_at_once_and_the_others_are_busy",
    ),
    Mutant(
        "environments: end of sessions that are not renewed",
        "sampler/environments/sessions.py",
        "if session.leased_until < now and not session.busy:",
        "if False:",
        f"{SERVICE}::test_a_session_that_nobody_renews_is_reaped_and_one_that_is_renewed_stays",
    ),
    Mutant(
        "environments: end of a session whose client left during its start",
        "sampler/environments/app.py",
        "if await request.breaks_within(0):",
        "if False:",
        f"{SERVICE}::test_a_client_that_leaves_during_the_start_leaves_no_session",
    ),
    Mutant(
        "environments: end of a worker that hangs",
        "sampler/environments/worker_process.py",
        "            async with asyncio.timeout(timeout_s):\n",
        "            async with asyncio.timeout(None):\n",
        f"{SERVICE}::test_a_worker_that_dies_or_hangs_in_a_step_is_an_error_in_time",
    ),
    Mutant(
        "environments: sessions of a killed worker are lost",
        "sampler/environments/sessions.py",
        '                self._forget(number, f"lost: {worker.why_lost}")\n',
        "                pass\n",
        f"{SERVICE}::test_sessions_of_a_killed_worker_are_lost_and_another_takes_its_place",
    ),
    Mutant(
        "environments: bound of an answer",
        "sampler/environments/client.py",
        "if num_bytes > MAX_ANSWER_BYTES:",
        "if False:",
        f"{CLIENT}::test_what_is_no_step_is_a_failure_and_never_a_reward",
    ),
    Mutant(
        "environments: an answer is checked whole",
        "sampler/environments/answers.py",
        "if problem := problem_of({name: found.get(name)}):",
        "if False:",
        f"{CLIENT}::test_an_answer_is_checked_whole_where_it_enters",
    ),
    Mutant(
        "environments: a score that is no number is a failure",
        "sampler/environments/answers.py",
        '    _number("metrics.score", metrics.get(SCORE))\n',
        "",
        f"{CLIENT}::test_an_answer_is_checked_whole_where_it_enters",
    ),
    Mutant(
        "environments: a session whose first step is bad is cancelled",
        "sampler/environments/client.py",
        "            if begun:\n                await self.end(",
        "            if False:\n                await self.end(",
        f"{CLIENT}::test_a_session_whose_first_step_is_bad_is_cancelled",
    ),
    Mutant(
        "environments: a time-out is that of the whole answer",
        "sampler/environments/client.py",
        "async with asyncio.timeout(timeout_s):",
        "async with asyncio.timeout(None):",
        f"{CLIENT}::test_an_answer_that_drips_exceeds_the_time_out",
    ),
    Mutant(
        "environments: a failed world gives no reward",
        "sampler/environments/answers.py",
        "        if self.status in ENDS:\n            return ENDS[self.status]\n",
        "        return ENDS.get(self.status, Termination.ANSWERED)\n",
        f"{CLIENT}::test_a_failed_world_is_no_termination_though_agentrl_sends_the_reward_0_with_it",
    ),
    Mutant(
        "environments: a full one is no failure",
        "sampler/environments/client.py",
        "BUSY = frozenset({406, 429, 503})",
        "BUSY = frozenset({429, 503})",
        f"{BUSY}::test_an_episode_without_room_gives_its_slot_back_without_a_failure",
    ),
    Mutant(
        "environments: an episode that ends cancels its session",
        "sampler/environments/session.py",
        "            if not self._is_over:\n",
        "            if False:\n",
        f"{PLAYED}::test_at_the_models_own_limits_the_rewards_so_far_count_and_the_session_is_cancelled",
    ),
    Mutant(
        "environments: renewal while the model thinks",
        "sampler/environments/session.py",
        "                await self._client.renew(self.url, self.number, self._token)\n",
        "                pass\n",
        f"{PLAYED}::test_a_session_lasts_while_the_model_thinks_longer_than_its_lease",
    ),
    Mutant(
        "environments: replies in a restarted history keep their tokens",
        "sampler/environments/sampler.py",
        "self._history, self._new, self._restart = messages, list(messages), True",
        "self._history += messages; self._new = list(messages)",
        f"{PLAYED}::test_a_restart_and_other_tools_keep_the_tokens_that_were_sampled",
    ),
    Mutant(
        "environments: replies of the same text keep their own tokens",
        "sampler/environments/sampler.py",
        "known.append(same.pop() if same else dict(message))",
        "known.append(same[-1] if same else dict(message))",
        f"{PLAYED}::test_replies_of_the_same_text_keep_their_own_tokens_in_a_restarted_history",
    ),
    Mutant(
        "environments: the token of the run's services is not sent to foreign controllers",
        "sampler/environments/choosing.py",
        "return None if kind in self._config.environment_controllers else self._config.environment_token",
        "return self._config.environment_token",
        f"{BUSY}::test_the_token_goes_to_the_runs_own_services_and_to_no_foreign_controller",
    ),
    Mutant(
        "environments: bound of sessions that one sampler starts at once",
        "sampler/environments/choosing.py",
        "            async with self._place(url, kind, end, is_told):\n                return",
        "            if True:\n                return",
        f"{BUSY}::test_only_so_many_sessions_start_at_once",
    ),
    Mutant(
        "environments: a service that starts slowly delays no start at another one",
        "sampler/environments/choosing.py",
        "self._loads[url] = _Load(asyncio.Semaphore(self._config.max_starting_environments))",
        "self._loads[url] = _Load(next((l.places for l in self._loads.values()), asyncio.Semaphore(2)))",
        f"{BUSY}::test_a_controller_that_starts_nothing_delays_no_other_and_is_told_in_time",
    ),
    Mutant(
        "environments: the wait for a place among those that start is bounded",
        "sampler/environments/choosing.py",
        "asyncio.timeout(max(0.0, end - time.monotonic()) if places.locked() else None)",
        "asyncio.timeout(None)",
        f"{BUSY}::test_a_controller_that_starts_nothing_delays_no_other_and_is_told_in_time",
    ),
    Mutant(
        "environments: what a world started ends with its worker",
        "sampler/environments/worker_process.py",
        '*(sys.executable, "-I", "-S", str(Path(guard.__file__)), str(guards_end)),',
        "*(),",
        f"{ENDS}::test_what_a_world_started_ends_with_the_killed_service",
    ),
    Mutant(
        "environments: what a world started ends with its killed guard",
        "sampler/environments/worker_process.py",
        "            await asyncio.to_thread(end_marked, self._mark)\n",
        "            pass\n",
        f"{ENDS}::test_what_a_world_started_ends_with_its_worker",
    ),
    Mutant(
        "environments: no page of another origin, nor of a name that was made to point here",
        "sampler/environments/app.py",
        "        self._require_trusted_page(request)\n        require_token",
        "        require_token",
        f"{ENDS}::test_without_a_token_only_this_machines_pages_and_clients_may_ask",
    ),
    Mutant(
        "environments: the list of services is read while nothing is played",
        "sampler/environments/choosing.py",
        "        if self._kinds:\n            await self._listed()\n",
        "        return\n",
        f"{BUSY}::test_a_kind_that_was_full_is_claimed_again_however_long_nothing_of_it_was_played",
    ),
    Mutant(
        "environments: tasks of full ones are not claimed",
        "shared/store/slots.py",
        "    if full_environments:\n",
        "    if False:\n",
        f"{BUSY}::test_a_claim_leaves_the_tasks_of_full_environments",
    ),
)
