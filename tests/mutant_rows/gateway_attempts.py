"""Protections of attempts of agents that run elsewhere, which any gateway process may continue."""

from tests.mutant_rows.mutant import Mutant

ENDS = "tests/sampler/gateway/test_external_ends.py"
EXTERNAL = "tests/sampler/gateway/test_external.py"
RACES = "tests/sampler/gateway/test_external_races.py"
OUTAGES = "tests/sampler/gateway/test_external_outages.py"
CLAIMS = "tests/sampler/gateway/test_external_claims.py"

MUTANTS = (
    Mutant(
        "requests end with their attempt at every gateway",
        "sampler/gateway/service.py",
        "every(self._attempts.cancel_ended, ENDED_LOOK_S)",
        "every(self._attempts.cancel_ended, 3600)",
        f"{ENDS}::test_a_request_that_runs_at_another_process_when_the_attempt_ends_is_no_part_of_it",
    ),
    Mutant(
        "clients that wait for a task ask one at a time",
        "sampler/gateway/harness_api.py",
        '"/claim": lambda request: _claim(claims, token, line, request)',
        '"/claim": lambda request: _claim(claims, token, asyncio.Lock(), request)',
        f"{CLAIMS}::test_clients_that_wait_for_a_task_ask_the_database_one_at_a_time",
    ),
    Mutant(
        "a request that is sent again takes the place of the first",
        "sampler/gateway/session.py",
        "                await self._give_up(sent.identity)\n",
        "                pass\n",
        f"{RACES}::test_a_request_that_is_sent_again_while_the_first_still_runs_takes_its_place",
    ),
    Mutant(
        "a request that comes after its own repetition is not sampled",
        "sampler/gateway/attempts.py",
        "if was_late and not sent.is_again and",
        "if False and",
        f"{RACES}::test_a_request_that_comes_just_after_its_own_repetition_is_not_sampled",
    ),
    Mutant(
        "SDKs ask again what may pass",
        "sampler/gateway/app.py",
        "headers=None if error.may_pass else NO_RETRY",
        "headers=NO_RETRY",
        f"{RACES}::test_a_request_that_may_pass_is_asked_again_by_its_sdk",
    ),
    Mutant(
        "a request written as its attempt ended is no part of it",
        "shared/documents/data.py",
        "return self.session is None or dispatch in self.traj",
        "return True",
        f"{ENDS}::test_a_request_that_came_while_the_attempt_ended_keeps_no_episode_from_training",
    ),
    Mutant(
        "an end that is sent again waits for the first",
        "sampler/gateway/attempts.py",
        "async with self._ending:",
        "async with asyncio.Lock():",
        f"{ENDS}::test_an_end_that_is_sent_again_is_scored_once",
    ),
    Mutant(
        "claims at once exceed no limit",
        "sampler/gateway/service.py",
        "        self._claiming += 1\n",
        "",
        f"{CLAIMS}::test_claims_at_once_exceed_no_limit_of_attempts",
    ),
    Mutant(
        "a second sample of a request does not take the thread of the first",
        "sampler/gateway/session.py",
        "if sent.is_again and (waiting",
        "if (waiting",
        f"{RACES}::test_two_samples_of_one_request_at_two_processes_both_count",
    ),
    Mutant(
        "a request that was asked again is no failure",
        "sampler/gateway/shared_journal.py",
        "unanswered = DispatchStatus.CANCELLED",
        "unanswered = DispatchStatus.FAILED",
        f"{RACES}::test_a_killed_request_that_continued_a_conversation_is_sent_again_and_scored",
    ),
    Mutant(
        "a written reply whose client left is a turn",
        "sampler/gateway/shared_journal.py",
        "if self._unwritten[dispatch_id].response is not None and isinstance(exc, asyncio.CancelledError):",
        "if False:",
        f"{RACES}::test_a_reply_that_was_written_as_its_client_left_is_a_turn",
    ),
    Mutant(
        "a limit is known to every gateway",
        "sampler/gateway/attempts.py",
        "await self._resources.store.sessions.meet_limit(self.claim.record_id, limit)",
        "pass",
        f"{ENDS}::test_a_limit_that_a_request_met_ends_the_episode_at_every_process",
    ),
    Mutant(
        "an attempt that ended elsewhere leaves its place",
        "sampler/gateway/attempts.py",
        "elif attempt.is_idle or attempt.claim.record_id in over:",
        "elif attempt.is_idle:",
        f"{ENDS}::test_an_attempt_that_ended_elsewhere_leaves_its_place",
    ),
    Mutant(
        "a harness that left gets no task",
        "sampler/gateway/harness_api.py",
        "    if await request.is_disconnected():\n        left",
        "    if False:\n        left",
        f"{CLAIMS}::test_a_task_whose_harness_left_while_it_waited_is_claimed_by_another",
    ),
    Mutant(
        "an end that was half written is finished",
        "sampler/gateway/attempts.py",
        "                await self._finish_again(record)",
        "                pass",
        f"{ENDS}::test_an_end_that_a_process_did_not_live_to_finish_is_finished_by_the_next",
    ),
    Mutant(
        "a stop in the middle of scoring releases no slot of an agent elsewhere",
        "sampler/episode.py",
        "if sampler._goes_on_elsewhere and isinstance(exc, asyncio.CancelledError):",
        "if False:",
        f"{ENDS}::test_a_stop_in_the_middle_of_scoring_leaves_the_end_to_another_process",
    ),
    Mutant(
        "a gateway that missed a turn writes no more",
        "sampler/gateway/shared_journal.py",
        "if self._is_stale:",
        "if False:",
        f"{EXTERNAL}::test_requests_at_once_learn_together_what_another_process_did",
    ),
    Mutant(
        "a turn's number is used once by all gateways",
        "shared/store/sessions.py",
        "if not is_new and not await self._is_asked_by(dispatch.id, dispatch.client.asked_by):",
        "if False:",
        f"{EXTERNAL}::test_any_process_goes_on_with_an_attempt_token_by_token",
    ),
    Mutant(
        "an attempt is read again at its end if another process has added a turn",
        "sampler/gateway/attempts.py",
        "if await self._resources.store.sessions.has_turn(record.id, len(sampler.episode.dispatches)):",
        "if False:",
        f"{ENDS}::test_an_end_knows_the_turns_of_every_process",
    ),
    Mutant(
        "an attempt with a lost reply gets no score",
        "sampler/gateway/external_sampler.py",
        "        if self.open_turns:",
        "        if False:",
        f"{EXTERNAL}::test_an_agent_that_goes_on_without_a_lost_reply_gets_no_score",
    ),
    Mutant(
        "a failed request is known to every gateway",
        "sampler/gateway/session.py",
        'self.failure = self.failure or EngineError(dispatch.error or "a request failed")',
        "pass",
        f"{EXTERNAL}::test_a_failed_request_is_remembered_by_every_process",
    ),
    Mutant(
        "a reply is written before the client is told",
        "sampler/gateway/shared_journal.py",
        "if not await finished(self._store.sessions.save_reply(self._unwritten[dispatch_id])):",
        "if False:",
        f"{EXTERNAL}::test_any_process_goes_on_with_an_attempt_token_by_token",
    ),
    Mutant(
        "a lost lease ends the key",
        "sampler/gateway/attempts.py",
        "if await self._resources.store.tasks.renew_leases([self.claim], self._idle_s):",
        "if await self._resources.store.tasks.renew_leases([self.claim], self._idle_s) and False:",
        f"{EXTERNAL}::test_an_attempt_without_requests_is_lost_and_its_key_with_it",
    ),
    Mutant(
        "only the token claims",
        "sampler/gateway/harness_api.py",
        "if token is not None and not hmac.compare_digest",
        "if False and not hmac.compare_digest",
        f"{EXTERNAL}::test_who_has_no_token_claims_nothing_and_bad_bodies_are_refused",
    ),
    Mutant(
        "a number is used although its client left in an outage",
        "sampler/gateway/shared_journal.py",
        "opened = await finished(self._store.sessions.open_turn(dispatch, closing))",
        "opened = await self._store.sessions.open_turn(dispatch, closing)",
        f"{OUTAGES}::test_a_client_that_leaves_in_an_outage_leaves_no_gap",
    ),
    Mutant(
        "a repetition of one of several equal requests cancels none",
        "sampler/gateway/session.py",
        "if self._sent_first[sent.identity] <= 1:",
        "if True:",
        f"{OUTAGES}::test_equal_requests_at_once_are_no_repetitions_of_each_other",
    ),
)
