"""Protections of the recording gateway for agents."""

from tests.mutant_rows.mutant import Mutant

DRIFT = "tests/sampler/gateway/test_drift.py"
AGENTS = "tests/sampler/gateway/test_agent_sampler.py"

STREAMS = "tests/sampler/gateway/test_streams.py"

RESPONSES = "tests/sampler/gateway/test_responses.py"
GOOGLE = "tests/sampler/gateway/test_google_generate.py"

EXTERNAL = "tests/sampler/gateway/test_external.py"
RACES = "tests/sampler/gateway/test_external_races.py"

MUTANTS = (
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
        f"{RACES}::test_a_limit_that_a_request_met_ends_the_episode_at_every_process",
    ),
    Mutant(
        "an attempt that ended elsewhere leaves its place",
        "sampler/gateway/attempts.py",
        "elif attempt.is_idle or attempt.claim.record_id in over:",
        "elif attempt.is_idle:",
        f"{RACES}::test_an_attempt_that_ended_elsewhere_leaves_its_place",
    ),
    Mutant(
        "a harness that left gets no task",
        "sampler/gateway/harness_api.py",
        "    if await request.is_disconnected():\n        left",
        "    if False:\n        left",
        f"{RACES}::test_a_task_whose_harness_left_while_it_waited_is_claimed_by_another",
    ),
    Mutant(
        "an end that was half written is finished",
        "sampler/gateway/attempts.py",
        "                await self._finish_again(record)",
        "                pass",
        f"{RACES}::test_an_end_that_a_process_did_not_live_to_finish_is_finished_by_the_next",
    ),
    Mutant(
        "a stop in the middle of scoring releases no slot of an agent elsewhere",
        "sampler/episode.py",
        "if sampler._goes_on_elsewhere and isinstance(exc, asyncio.CancelledError):",
        "if False:",
        f"{RACES}::test_a_stop_in_the_middle_of_scoring_leaves_the_end_to_another_process",
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
        'if written is None or written.get("client", {}).get("asked_by") != dispatch.client.asked_by:',
        "if written is None:",
        f"{EXTERNAL}::test_any_process_goes_on_with_an_attempt_token_by_token",
    ),
    Mutant(
        "an attempt that ended is asked no more",
        "sampler/gateway/attempts.py",
        "if record is None or session is None or session.end is not None or record.status is not RecordStatus.RUNNING:",
        "if record is None or session is None:",
        f"{EXTERNAL}::test_an_episode_is_claimed_played_and_finished_from_outside",
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
        "an earlier response is not known",
        "sampler/gateway/responses.py",
        "if named := [name for name in _UNKNOWN_HERE if extra.get(name)]:",
        "if named := []:",
        f"{RESPONSES}::test_what_is_not_stored_here_is_refused_in_the_sdks_own_classes",
    ),
    Mutant(
        "items of one reply are one message",
        "sampler/gateway/responses.py",
        'if reply is None or (kind == "reasoning" and len(reply) > 1):',
        "if True:",
        f"{RESPONSES}::test_a_loop_of_the_sdk_is_one_conversation_of_sampled_ids",
    ),
    Mutant(
        "a call of a tool in a namespace names both",
        "sampler/gateway/responses.py",
        "if space not in request.namespaces:",
        "if True:",
        f"{RESPONSES}::test_tools_in_namespaces_are_called_by_both_names_and_tools_of_the_vendor_are_left_out",
    ),
    Mutant(
        "tools that only a vendor can run are no error",
        "sampler/gateway/responses.py",
        "elif not left_out([tool.type]):",
        "else:",
        "tests/sampler/gateway/test_transcripts.py::test_a_recorded_agent_is_one_conversation",
    ),
    Mutant(
        "a long reply in a stream is decoded once",
        "sampler/turn.py",
        "begin = max(0, count - _OVERLAP_IDS)",
        "begin = 0",
        "tests/sampler/test_heard.py::test_each_text_is_that_of_all_ids_so_far_and_long_replies_are_not_decoded_anew",
    ),
    Mutant(
        "a response without an id answers the call with its name",
        "sampler/gateway/google_generate.py",
        "if response.id in (None, one[0]) and",
        "if response.id == one[0] and",
        f"{GOOGLE}::test_a_loop_is_one_conversation_of_sampled_ids",
    ),
    Mutant(
        "a stream has its text while the engine samples",
        "sampler/sampler.py",
        "on_ids=heard,",
        "on_ids=None,",
        f"{STREAMS}::test_text_comes_while_the_engine_samples",
    ),
    Mutant(
        "a stream never makes two replies one",
        "sampler/gateway/streaming.py",
        "if not partial.text.startswith(self._text):",
        "if False:",
        f"{STREAMS}::test_an_engine_that_dies_in_a_stream_never_makes_two_replies_one",
    ),
    Mutant(
        "a client that leaves a stream aborts its request",
        "sampler/gateway/app.py",
        "        yield _event(*dialect.error_event(error))\n    finally:\n        asking.cancel()",
        "        yield _event(*dialect.error_event(error))\n    finally:\n        asking.done()",
        f"{STREAMS}::test_a_client_that_leaves_in_the_middle_of_a_stream_aborts_its_request",
    ),
    Mutant(
        "a reply in another history keeps its sampled ids",
        "sampler/gateway/matching.py",
        "reply = self._after.get((lines[at], words)) or self._saying.get((policy, words))",
        "reply = None",
        f"{DRIFT}::test_another_history_is_another_branch_in_which_sampled_replies_keep_their_ids",
    ),
    Mutant(
        "a conversation with other tools is another thread",
        "sampler/gateway/matching.py",
        "if thread.tools == tools_hash and",
        "if",
        f"{DRIFT}::test_parallel_sub_agents_have_threads_with_their_own_tools",
    ),
    Mutant(
        "another system prompt is another conversation",
        "sampler/gateway/matching.py",
        "return common > 0 and max(len(ours), len(theirs)) - common <= self.head_lines",
        "return True",
        f"{DRIFT}::test_a_system_prompt_whose_head_changes_is_the_same_conversation_if_the_settings_say_so",
    ),
    Mutant(
        "an agent that goes on without a reply is not scored",
        "sampler/gateway/session.py",
        "            self.failure = self.failure or exc\n",
        "",
        f"{AGENTS}::test_a_crash_or_a_lost_reply_is_never_a_score",
    ),
    Mutant(
        "a client that leaves aborts its request",
        "sampler/gateway/app.py",
        "        if gone.done() and not asking.done():\n            asking.cancel()",
        "        if gone.done() and not asking.done():\n            asking.done()",
        "tests/sampler/gateway/test_chat_completions.py::test_a_client_that_leaves_aborts_its_request_and_may_go_on",
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
)
