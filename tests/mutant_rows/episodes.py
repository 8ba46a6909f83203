"""Protections of an episode: its threads, tools, scores and leases."""

from tests.mutant_rows.mutant import Mutant

LEASES = "tests/sampler/test_service_leases.py"
THREADS = "tests/sampler/test_threads.py"
REFUSALS = "tests/sampler/test_thread_refusals.py"
STATE = "tests/sampler/test_thread_state.py"

MUTANTS = (
    Mutant(
        "a cancellation after the score leaves the record scored",
        "sampler/episode.py",
        "if await tasks.is_played_by(claim):",
        "if False:",
        "tests/sampler/test_episode.py::test_a_cancellation_between_the_score_and_its_acknowledgement_leaves_the_record_scored",
    ),
    Mutant(
        "threads: a copy of a reply means the one that was sampled after the same messages",
        "sampler/rendering/known_replies.py",
        "found = self._after_the_same(messages, found, copies)",
        "pass",
        f"{THREADS}::test_alternating_histories_lose_no_sampled_id_even_if_both_say_the_same",
    ),
    Mutant(
        "threads: a thread has one request at a time",
        "sampler/in_flight.py",
        "if thread in self._callers:",
        "if False:",
        f"{REFUSALS}::test_a_misuse_of_threads_fails_the_slot_with_the_remedy",
    ),
    Mutant(
        "threads: an episode does not end with an open request",
        "sampler/in_flight.py",
        "if self._callers:",
        "if False:",
        f"{REFUSALS}::test_an_episode_that_ends_with_an_open_request_is_refused_and_the_request_cancelled",
    ),
    Mutant(
        "threads: a failed episode cancels its other requests",
        "sampler/in_flight.py",
        "            task.cancel()\n",
        "            pass\n",
        f"{REFUSALS}::test_after_a_failure_of_one_thread_the_others_ask_nothing_and_nothing_stays_open",
    ),
    Mutant(
        "threads: a request without a reply leaves its thread as it was",
        "sampler/sampler.py",
        "                if turn is None:\n                    self._threads.restore(key, before)",
        "                if False:\n                    self._threads.restore(key, before)",
        f"{REFUSALS}::test_a_cancelled_request_leaves_its_thread_as_it_was",
    ),
    Mutant(
        "threads: a request closes its own thread's last turn alone",
        "sampler/journal.py",
        'self._unwritten.get(self._last.get(thread, ""))',
        "next(reversed(self._unwritten.values()), None)",
        f"{THREADS}::test_tool_calls_marks_and_scores_belong_to_the_turn_that_is_named",
    ),
    Mutant(
        "threads: an episode with an open request is not settled",
        "sampler/settlement/settle.py",
        "        _require_closed(rid, own_turns)\n",
        "",
        f"{STATE}::test_an_episode_with_an_open_request_is_set_aside_at_settlement_and_found_by_the_audit",
    ),
    Mutant(
        "threads: a turn's return leaves out turns that ran at the same time",
        "sampler/settlement/groups.py",
        "return earlier.number in later.while_open",
        "return False",
        f"{THREADS}::test_a_turns_return_counts_what_was_asked_after_its_reply",
    ),
    Mutant(
        "a list of messages that repeats the conversation is refused",
        "sampler/rendering/view.py",
        "        self._sent.send(messages, restart=restart)\n",
        "",
        "tests/sampler/test_new_messages.py::"
        "test_an_episode_that_resends_its_history_fails_with_the_reason_and_is_not_retried",
    ),
    Mutant(
        "the conversation that a scorer reads is bounded",
        "sampler/messages/transcript.py",
        "while self._chars > self._max_chars and",
        "while False and",
        "tests/sampler/test_transcript.py::test_a_transcript_is_bounded_and_states_the_number_of_dropped_messages",
    ),
    Mutant(
        "renewal of leases: the loop",
        "sampler/service/service.py",
        '            "renew": (self._renew, self._renew_s),\n',
        "",
        f"{LEASES}::test_the_lease_of_a_long_episode_is_renewed_while_it_is_played",
    ),
    Mutant(
        "cancellation of an episode whose lease was lost",
        "sampler/service/service.py",
        '                    log.warning("lease lost record=%s", claim.record_id)\n                    task.cancel()\n',
        '                    log.warning("lease lost record=%s", claim.record_id)\n',
        f"{LEASES}::test_an_episode_with_a_lost_lease_is_cancelled_and_the_sampler_continues",
    ),
    Mutant(
        "secrets of the agents' settings: extra_body",
        "sampler/agents/config.py",
        "HIDDEN if _SECRET_NAME.search(k) else",
        "HIDDEN if False else",
        "tests/sampler/test_settings_kept.py::test_each_distinct_settings_of_samplers_are_stored_once_including_their_agents",
    ),
    Mutant(
        "bound of what is said of a score",
        "sampler/scorers/details.py",
        "for one in accepted[:MOST_EXPECTED]]",
        "for one in accepted]",
        "tests/sampler/test_scorers.py::test_a_scores_details_are_bounded_for_any_answers",
    ),
    Mutant(
        "time-out of opening a tool session",
        "sampler/tools/connection.py",
        "{opened, self._task}, timeout=self._limits.open_s, return_when",
        "{opened, self._task}, timeout=None, return_when",
        "tests/sampler/test_tool_failures.py::test_opening_times_out_as_a_whole_if_the_server_trickles_bytes",
    ),
    Mutant(
        "own code: a wrong setting is not retried",
        "sampler/episode.py",
        "    most = config.max_failures if may_pass else 1",
        "    most = config.max_failures",
        "tests/sampler/test_mcp_sampler.py::test_a_task_with_missing_needs_names_them_and_is_retried_only_if_they_may_appear",
    ),
    Mutant(
        "own code: a task for another sampler is left to it",
        "sampler/service/playable.py",
        "        return text is not None\n",
        "        return False\n",
        "tests/sampler/test_playable.py::test_unplayable_tasks_are_left_to_other_samplers_even_if_they_arrive_later",
    ),
    Mutant(
        "own code: a judge's keys are in no details",
        "sampler/scorers/registry.py",
        "details=without(keys, ",
        "details=without([], ",
        "tests/sampler/test_own_scorers.py::test_a_scorers_own_judge_receives_the_key_and_no_output_contains_it",
    ),
    Mutant(
        "threads: a request that failed is not in the conversation that a scorer reads",
        "sampler/sampler.py",
        "            return await self._ask(view, dispatch, parent, listener, restart=restart)\n",
        "            self._transcripts.setdefault(view.thread, Transcript()).told(messages, restart=restart)\n"
        "            return await self._ask(view, dispatch, parent, listener, restart=True)\n",
        f"{REFUSALS}::test_a_request_that_is_sent_again_is_in_the_conversation_once_and_is_not_marked_for_the_other",
    ),
    Mutant(
        "threads: a mark is never for a request without a reply",
        "sampler/journal.py",
        "if one.response is not None]",
        "if True]",
        f"{REFUSALS}::test_a_request_that_is_sent_again_is_in_the_conversation_once_and_is_not_marked_for_the_other",
    ),
    Mutant(
        "threads: what was asked while the others were written is written too",
        "sampler/journal.py",
        "        for one in closed:  # a task that the sampler left running may have asked meanwhile\n"
        "            self._unwritten.pop(one.id, None)\n",
        "        self._unwritten.clear()\n",
        f"{REFUSALS}::test_a_request_that_was_asked_while_the_others_were_written_is_written_too",
    ),
)
