"""Protections of an episode: its threads, tools, scores and leases."""

from tests.mutant_rows.mutant import Mutant

LEASES = "tests/sampler/test_service_leases.py"
THREADS = "tests/sampler/test_threads.py"
REFUSALS = "tests/sampler/test_thread_refusals.py"
WEIGHTED = "tests/sampler/test_weighted_scorers.py"
FAULTS = "tests/sampler/test_group_scorer_faults.py"
GROUPS = "tests/sampler/test_group_scorers.py"
BY_TASK = "tests/sampler/test_samplers_by_task.py"
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
        "return without(keys, value) if keys else value",
        "return value",
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
    Mutant(
        "samplers by task: a name that this process lacks is claimed no more",
        "sampler/service/playable.py",
        "self.left += [kind for kind in kinds if kind not in self.left]",
        "pass",
        f"{BY_TASK}::test_a_name_that_this_process_lacks_is_left_to_others_at_once_and_told",
    ),
    Mutant(
        "samplers by task: a scorer is unusable for the samplers that need it alone",
        "shared/store/slots.py",
        'kind: Document = {"payload.sampler": one.sampler}',
        "kind: Document = {}",
        f"{BY_TASK}::test_an_unknown_scorer_of_one_sampler_does_not_keep_the_tasks_of_another",
    ),
    Mutant(
        "samplers by task: a gateway leaves the tasks of samplers",
        "sampler/kinds.py",
        "if name not in self._named:",
        "if False:",
        "tests/sampler/gateway/test_external.py::test_a_gateway_offers_what_names_no_sampler_or_external",
    ),
    Mutant(
        "several scorers: there is no score if one of them fails",
        "sampler/scoring.py",
        "            raise one\n",
        "            one = Score(0.0)\n",
        f"{WEIGHTED}::test_if_one_of_them_fails_there_is_no_score",
    ),
    Mutant(
        "several scorers: a task of which one is unknown is left",
        "shared/store/slots.py",
        '{"payload.scorers.name": one.scorer}',
        '{"payload.scorer": None}',
        f"{WEIGHTED}::test_tasks_of_which_one_scorer_is_unknown_are_left_to_others",
    ),
    Mutant(
        "scorers that are not async run in a thread",
        "sampler/scorers/calling.py",
        "await threads.run(lambda: function(*positional, **keywords))",
        "function(*positional, **keywords)",
        f"{WEIGHTED}::test_a_scorer_that_is_not_async_runs_in_a_thread_and_may_hang",
    ),
    Mutant(
        "group scorers: an attempt that is over keeps no scores",
        "shared/store/group_scores.py",
        '{"_id": task.id, **UNSCORED, "scoring.attempt": attempt},',
        '{"_id": task.id, **UNSCORED},',
        f"{GROUPS}::test_scores_of_an_attempt_that_is_over_change_nothing",
    ),
    Mutant(
        "group scorers: a group is abandoned in the end, without a number",
        "sampler/settlement/settle.py",
        "if (reason := given_up(task)) is not None:",
        "if (reason := None) is not None:",
        f"{GROUPS}::test_a_judge_that_is_down_delays_the_group_and_at_last_abandons_it_without_a_number",
    ),
    Mutant(
        "group scorers: a stopped sampler frees the group",
        "sampler/settlement/group_scoring.py",
        "            await asyncio.shield(self._postpone(task.id, attempt))\n",
        "",
        f"{GROUPS}::test_a_sampler_that_is_stopped_frees_the_group_at_once",
    ),
    Mutant(
        "group scorers: records get the group's scores if the sampler dies before",
        "sampler/settlement/settle.py",
        "    await store.group_scores.write_records(task)\n",
        "",
        f"{GROUPS}::test_a_group_scorers_values_are_part_of_the_score_of_slots_records_and_data",
    ),
    Mutant(
        "group scorers: a ranking has each number once",
        "sampler/scorers/relative.py",
        "raise Unreadable(f'That is no ranking.",
        "str(f'That is no ranking.",
        "tests/sampler/test_relative_scorers.py::test_a_ranking_that_is_none_is_asked_for_again_and_never_taken",
    ),
    Mutant(
        "judges: a number that was not asked for is asked for again",
        "sampler/scorers/judged.py",
        "or score != round(score) or not 0 <= score <= BEST:",
        "or score != round(score):",
        "tests/sampler/test_judged_numbers.py::test_what_is_not_as_asked_is_asked_for_again_and_is_never_a_number",
    ),
    Mutant(
        "group scorers: a group that needs one is settled by none that does not know it",
        "shared/store/slots.py",
        '        return {"$or": ready}\n',
        "        return {}\n",
        f"{GROUPS}::test_a_group_whose_scorer_is_unknown_here_is_left_to_another_sampler",
    ),
    Mutant(
        "group scorers: a sum that is not finite is a failure",
        "sampler/scorers/weighted.py",
        "if not math.isfinite(total):",
        "if False:",
        f"{FAULTS}::test_values_that_no_double_can_add_are_a_failure",
    ),
    Mutant(
        "group scorers: names of metrics are fields of documents",
        "sampler/settlement/group_scoring.py",
        "field_name(str(name)): float(value)",
        "str(name): float(value)",
        f"{FAULTS}::test_metrics_of_a_group_are_numbers_under_names_that_documents_take",
    ),
    Mutant(
        "samplers by task: what names no scorer is left where the default one is missing",
        "sampler/service/playable.py",
        "kinds += [Unplayable(sampler, without_scorer=True)] if bad and not scorers else []",
        "pass",
        f"{BY_TASK}::test_a_default_scorer_that_is_missing_for_one_sampler_holds_up_no_task_of_others",
    ),
)
