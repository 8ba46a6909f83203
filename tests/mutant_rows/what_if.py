"""Protections of what-if questions: nothing is compared with other weights, and nothing is asked of the wrong step."""

from tests.mutant_rows.mutant import Mutant

TRAINED = "tests/tandem/test_weights_what_if.py"
RESETTLE = "tests/tandem/test_resettle.py"
FORK = "tests/sampler/test_fork.py"
OF_FORKS = "tests/sampler/test_forks_of_forks.py"
COMMAND = "tests/tandem/commands/test_fork.py"
SCORES = "tests/sampler/engine/local/test_prompt_scores.py"

MUTANTS = (
    Mutant(
        "replay: tokens of other weights than the engine serves are left out",
        "scripts/tandem/what_if/engine_replay.py",
        "    recomputed[turn.versions != version] = np.nan\n",
        "",
        f"{TRAINED}::test_tokens_of_other_weights_than_the_engine_serves_are_not_compared_unless_asked_for",
    ),
    Mutant(
        "replay: nothing compared is no agreement",
        "scripts/tandem/what_if/replayed.py",
        "return self.compared > 0 and self.largest <= tolerance",
        "return self.largest <= tolerance",
        "tests/tandem/test_what_if.py::test_nothing_compared_is_no_agreement",
    ),
    Mutant(
        "bisect: momentum is taken out of the changes",
        "scripts/tandem/what_if/bisected.py",
        "        u = (moved - carried) /",
        "        u = moved /",
        f"{TRAINED}::test_the_step_and_the_group_with_wrong_rewards_are_found",
    ),
    Mutant(
        "prompt log-probs: each belongs to the token that was sent",
        "sampler/core/engines/client/prompt_scores.py",
        "if type(pair[1]) is not int or pair[1] != token:",
        "if False:",
        f"{SCORES}::test_an_answer_without_a_log_prob_of_each_token_is_never_read_as_one",
    ),
    Mutant(
        "prompt log-probs: their logits are computed, not taken from the cache",
        "sampler/engine/local/running.py",
        "return most if self.logprob_start is None else min(most, self.logprob_start)",
        "return most",
        f"{SCORES}::test_prompt_log_probs_equal_a_plain_forward_also_after_the_cache_has_the_prompt",
    ),
    Mutant(
        "resettle: what a judge said before an interruption stays",
        "scripts/tandem/what_if/rescored.py",
        '        "score": scores[name],\n',
        '        "score": float(scored[name][0].value),\n',
        f"{RESETTLE}::test_scorers_read_the_stored_conversation_and_an_interrupted_call_keeps_what_they_said",
    ),
    Mutant(
        "resettle: other settings than before are refused",
        "scripts/tandem/what_if/resettle.py",
        "    if stored != expected:\n",
        "    if False:\n",
        f"{RESETTLE}::test_what_does_not_fit_is_refused_with_the_remedy",
    ),
    Mutant(
        "resettle: a run with tasks of its own is no target",
        "scripts/tandem/what_if/resettle.py",
        "    if SETTINGS not in (await target.runs.read()).settings:",
        "    if False:",
        f"{RESETTLE}::test_a_run_with_tasks_of_its_own_and_the_run_itself_are_no_target",
    ),
    Mutant(
        "resettle: a run with processes of its own is no target",
        "scripts/tandem/what_if/resettle.py",
        "bool(await target.workers.all())",
        "False",
        f"{RESETTLE}::test_a_run_that_is_in_use_is_no_target",
    ),
    Mutant(
        "replay: a log-prob that is no number is a difference",
        "scripts/tandem/what_if/replayed.py",
        "apart[broken] = np.inf",
        "pass",
        "tests/tandem/test_what_if.py::test_a_log_prob_that_is_no_number_is_a_difference",
    ),
    Mutant(
        "fork: the audit compares the first prompt with the origin's",
        "scripts/tandem/audit/forks.py",
        "first.parent is None and actual == expected,",
        "first.parent is None,",
        f"{FORK}::test_the_audit_tells_a_fork_of_another_prompt_and_one_whose_origin_is_gone",
    ),
    Mutant(
        "fork: a prompt that this sampler's template writes otherwise is not asked",
        "sampler/core/rendering/view.py",
        "        if own_ids != list(ids):\n",
        "        if False:\n",
        f"{FORK}::test_a_prompt_that_this_sampler_would_write_otherwise_is_not_asked",
    ),
    Mutant(
        "fork: nothing of its requests is stored as shared with another episode's",
        "sampler/core/rendering/view.py",
        "list(ids), None, RecordedRequests()",
        "list(ids), None, self._tokens.recorded",
        f"{FORK}::test_a_fork_asks_with_exactly_the_ids_of_its_turn_and_goes_on_from_there",
    ),
    Mutant(
        "fork: a repeated tool call with another result ends the slot",
        "sampler/core/kinds/forked.py",
        "            if (result.text, result.blocks, result.is_error) != (call.result, call.blocks, call.is_error):\n",
        "            if False:\n",
        f"{FORK}::test_earlier_calls_are_made_again_and_a_result_that_differs_ends_the_slot_with_both",
    ),
    Mutant(
        "fork: a sampler that would begin anew plays none",
        "sampler/core/episode/episode.py",
        "        sampler.require_forks()\n",
        "        pass\n",
        f"{FORK}::test_a_sampler_that_would_begin_anew_and_servers_with_other_tools_play_no_fork",
    ),
    Mutant(
        "fork: it must be said what becomes of earlier tool calls",
        "scripts/tandem/commands/fork.py",
        "    if calls and not (stateless or replay):\n",
        "    if False:\n",
        "tests/tandem/commands/test_fork.py::test_it_must_be_said_what_becomes_of_earlier_tool_calls",
    ),
    Mutant(
        "fork: a task file makes none",
        "shared/tasks/lines.py",
        'if name != "fork")',
        'if name != "")',
        "tests/tandem/commands/test_fork.py::test_a_task_file_makes_no_fork",
    ),
    Mutant(
        "fork of a fork: tool calls of the episodes before are its own, too",
        "shared/episodes/origin.py",
        "        before = [] if self.ancestor is None else self.ancestor.path\n",
        "        before = []\n",
        f"{OF_FORKS}::test_tool_calls_of_every_episode_before_are_said_to_the_command_and_made_again",
    ),
    Mutant(
        "fork of a fork: replies of the episodes before keep their sampled ids",
        "shared/episodes/origin.py",
        "await read_origin(store, record.tid) if record.split == FORK_SPLIT else None",
        "None",
        f"{OF_FORKS}::test_a_fork_of_a_fork_asks_with_exactly_the_ids_of_its_turn",
    ),
    Mutant(
        "fork: calls after the turn have ids that no call before it has",
        "sampler/core/episode/threads.py",
        "        self._turns_before = len(path)\n",
        "        self._turns_before = 0\n",
        f"{OF_FORKS}::test_calls_before_and_after_a_fork_have_ids_of_their_own",
    ),
    Mutant(
        "fork: the curriculum skips no further group of one",
        "shared/store/curriculum.py",
        "    if task.split != TRAIN_SPLIT:\n",
        "    if False:\n",
        "tests/shared/test_curriculum.py::test_a_further_group_of_a_fork_is_no_later_epoch_of_it",
    ),
    Mutant(
        "fork: its failures end no sampler",
        "sampler/core/service/first_episodes.py",
        "self.are_over or task.split == FORK_SPLIT",
        "self.are_over",
        "tests/sampler/test_own_samplers.py::test_forks_that_cannot_be_played_end_no_sampler",
    ),
    Mutant(
        "fork: its failures are none of the run's",
        "shared/store/tasks.py",
        'HAS_FAILURES | {"split": {"$ne": FORK_SPLIT} if split is None else split}',
        "HAS_FAILURES",
        "tests/shared/test_forks_aside.py::test_an_answer_about_the_run_is_the_same_with_forks",
    ),
    Mutant(
        "fork: a group that another command queued at the same moment is compared with the wish",
        "shared/episodes/origin.py",
        "if not again or (new and is_of(stored, fork, n)):",
        "if not again or new:",
        f"{COMMAND}::test_a_command_that_another_one_forestalls_takes_no_group_of_another_wish_for_its_own",
    ),
    Mutant(
        "fork: a command that was killed between its writes is completed by the next",
        "shared/episodes/origin.py",
        "    if stored.created_at is None:",
        "    if False:",
        f"{COMMAND}::test_a_command_killed_at_any_write_is_repeated_to_the_same_group",
    ),
    Mutant(
        "fork: a deleted group is not waited for",
        "scripts/tandem/commands/fork.py",
        "            if stored is None:\n",
        "            stored = stored or task\n            if stored is None:\n",
        f"{COMMAND}::test_a_fork_that_is_deleted_while_it_waits_ends_the_command",
    ),
    Mutant(
        "fork: an episode that another sampler played by default is refused before it is queued",
        "shared/episodes/origin.py",
        'return str(had["sampler"]) if had.get("sampler") else None',
        "return None",
        f"{COMMAND}::test_an_episode_of_another_sampler_is_refused_before_anything_is_queued",
    ),
    Mutant(
        "fork: its scores are no part of a sampler's mean reward",
        "sampler/core/service/service.py",
        " and sampler.task.split != FORK_SPLIT:",
        ":",
        "tests/system/test_fork.py::test_a_fork_survives_the_death_of_its_sampler_and_begins_with_the_ids_of_its_turn",
    ),
)
