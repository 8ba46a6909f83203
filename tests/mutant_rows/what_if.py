"""Protections of what-if questions: nothing is compared with other weights, and nothing is asked of the wrong step."""

from tests.mutant_rows.mutant import Mutant

TRAINED = "tests/trainer/test_what_if.py"
RESETTLE = "tests/sampler/test_resettle.py"
FORK = "tests/sampler/test_fork.py"
SCORES = "tests/sampler/engine/local/test_prompt_scores.py"

MUTANTS = (
    Mutant(
        "replay: tokens of other weights than the engine serves are left out",
        "sampler/what_if/replay.py",
        "    found[turn.versions != version] = np.nan\n",
        "",
        f"{TRAINED}::test_tokens_of_other_weights_than_the_engine_serves_are_not_compared_unless_asked_for",
    ),
    Mutant(
        "replay: nothing compared is no agreement",
        "shared/what_if/replayed.py",
        "return self.compared > 0 and self.largest <= tolerance",
        "return self.largest <= tolerance",
        "tests/shared/test_what_if.py::test_nothing_compared_is_no_agreement",
    ),
    Mutant(
        "bisect: momentum is taken out of the changes",
        "trainer/what_if/bisected.py",
        "        u = (moved - carried) /",
        "        u = moved /",
        f"{TRAINED}::test_the_step_and_the_group_with_wrong_rewards_are_found",
    ),
    Mutant(
        "prompt log-probs: each belongs to the token that was sent",
        "sampler/engine/client/prompt_scores.py",
        "if type(pair[1]) is not int or pair[1] != token:",
        "if False:",
        f"{SCORES}::test_an_answer_without_a_log_prob_of_each_token_is_never_read_as_one",
    ),
    Mutant(
        "prompt log-probs: their logits are computed, not taken from the cache",
        "sampler/engine/local/generation.py",
        "return most if self.logprob_start is None else min(most, self.logprob_start)",
        "return most",
        f"{SCORES}::test_prompt_log_probs_equal_a_plain_forward_also_after_the_cache_has_the_prompt",
    ),
    Mutant(
        "resettle: what a judge said before an interruption stays",
        "sampler/what_if/rescored.py",
        '        "score": scores[name],\n',
        '        "score": float(scored[name][0].value),\n',
        f"{RESETTLE}::test_scorers_read_the_stored_conversation_and_an_interrupted_call_keeps_what_they_said",
    ),
    Mutant(
        "resettle: other settings than before are refused",
        "sampler/what_if/resettle.py",
        "    if stored != wanted:\n",
        "    if False:\n",
        f"{RESETTLE}::test_what_does_not_fit_is_refused_with_the_remedy",
    ),
    Mutant(
        "resettle: a run with tasks of its own is no target",
        "sampler/what_if/resettle.py",
        "    if SETTINGS not in (await target.runs.read()).configs:",
        "    if False:",
        f"{RESETTLE}::test_a_run_with_tasks_of_its_own_and_the_run_itself_are_no_target",
    ),
    Mutant(
        "resettle: a run with processes of its own is no target",
        "sampler/what_if/resettle.py",
        "bool(await target.workers.all())",
        "False",
        f"{RESETTLE}::test_a_run_that_is_in_use_is_no_target",
    ),
    Mutant(
        "replay: a log-prob that is no number is a difference",
        "shared/what_if/replayed.py",
        "apart[broken] = np.inf",
        "pass",
        "tests/shared/test_what_if.py::test_a_log_prob_that_is_no_number_is_a_difference",
    ),
    Mutant(
        "fork: the audit compares the first prompt with the origin's",
        "shared/audit/forks.py",
        "first.parent is None and found == expected,",
        "first.parent is None,",
        f"{FORK}::test_the_audit_tells_a_fork_of_another_prompt_and_one_whose_origin_is_gone",
    ),
    Mutant(
        "fork: a prompt that this sampler's template writes otherwise is not asked",
        "sampler/rendering/view.py",
        "        if given != self.context.ids:\n",
        "        if False:\n",
        f"{FORK}::test_a_prompt_that_this_sampler_would_write_otherwise_is_not_asked",
    ),
    Mutant(
        "fork: nothing of its requests is stored as shared with another episode's",
        "sampler/rendering/view.py",
        "list(ids), None, RecordedRequests()",
        "list(ids), None, self._tokens.recorded",
        f"{FORK}::test_a_fork_asks_with_exactly_the_ids_of_its_turn_and_goes_on_from_there",
    ),
    Mutant(
        "fork: a repeated tool call with another result ends the slot",
        "sampler/forked.py",
        "            if (result.text, result.is_error) != (call.result, call.is_error):\n",
        "            if False:\n",
        f"{FORK}::test_earlier_calls_are_made_again_and_a_result_that_differs_ends_the_slot_with_both",
    ),
    Mutant(
        "fork: a sampler that would begin anew plays none",
        "sampler/episode.py",
        "        require_forks(type(sampler))\n",
        "        pass\n",
        f"{FORK}::test_a_sampler_that_would_begin_anew_and_servers_with_other_tools_play_no_fork",
    ),
    Mutant(
        "fork: it must be said what becomes of earlier tool calls",
        "shared/cli/fork.py",
        "    if calls and not (stateless or replay):\n",
        "    if False:\n",
        "tests/shared/cli/test_fork.py::test_it_must_be_said_what_becomes_of_earlier_tool_calls",
    ),
    Mutant(
        "fork: a task file makes none",
        "shared/tasks/lines.py",
        'if name != "fork")',
        'if name != "")',
        "tests/shared/cli/test_fork.py::test_a_task_file_makes_no_fork",
    ),
)
