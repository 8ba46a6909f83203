"""Protections of scorers: what fails, fails alone and in time."""

from tests.mutant_rows.mutant import Mutant

BATCHED = "tests/sampler/test_batched_scorers.py"
BATCHES = "sampler/core/scorers/batches.py"

MUTANTS = (
    Mutant(
        "waiting for a place is no work's time",
        "sampler/core/time_limits.py",
        "            self._timeout.reschedule(None)\n",
        "            pass\n",
        "tests/sampler/test_queues.py::test_waiting_counts_for_no_limit_around_it_and_work_does",
    ),
    Mutant(
        "an answer is missed only by a scorer that reads one",
        "sampler/core/episode/scoring.py",
        "any(scorer_needs_answer(scorer.name) for scorer in sampler.scorers)",
        "True",
        "tests/sampler/test_score_shares.py::test_a_scorer_of_whole_replies_misses_no_answer",
    ),
    Mutant(
        "a wait for a scorer's thread ends",
        "sampler/core/scorers/calling.py",
        "async with queued(wait), asyncio.timeout(MOST_WAIT_S):",
        "async with queued(wait):",
        "tests/sampler/test_queues.py::test_a_place_that_never_comes_is_a_failure",
    ),
    Mutant(
        "a reference answer that cannot be read is the task's fault",
        "sampler/bundled_scorers/math_worker.py",
        "    if problem is None or problem:\n",
        "    if problem is None:\n",
        "tests/sampler/test_queues.py::test_a_reference_answer_that_cannot_be_read_is_the_tasks_fault",
    ),
    Mutant(
        "batched scorers: size of a batch",
        BATCHES,
        "while self._waiting and len(batch) < self._most:",
        "while self._waiting:",
        f"{BATCHED}::test_requests_that_come_together_are_scored_together_and_at_most_so_many_at_once",
    ),
    Mutant(
        "batched scorers: a request that fails fails alone",
        BATCHES,
        "if len(batch) == 1 or isinstance(exc, asyncio.CancelledError):",
        "if True:",
        f"{BATCHED}::test_one_request_that_fails_fails_alone",
    ),
    Mutant(
        "batched scorers: time of a batch",
        "sampler/core/scorers/registry.py",
        "    async with time_limit(None if registered.needs_judge else TIMEOUT_S):\n",
        "    async with asyncio.timeout(70):\n",
        f"{BATCHED}::test_a_batch_that_hangs_fails_in_time_and_the_next_one_is_scored",
    ),
    Mutant(
        "batched scorers: as many values as requests",
        BATCHES,
        " or len(scores) != len(batch):",
        ":",
        f"{BATCHED}::test_what_is_no_list_of_as_many_numbers_is_a_failure_of_each",
    ),
    Mutant(
        "judges: a vote that is not given is no score",
        "sampler/bundled_scorers/judged.py",
        "    return [vote.result() for vote in votes]\n",
        "    return [vote.result() for vote in votes][:1]\n",
        "tests/sampler/test_judged_numbers.py::test_several_judges_vote_and_their_disagreement_is_a_metric",
    ),
    Mutant(
        "live reward: not before the group is scored",
        "sampler/core/service/service.py",
        "if not sampler.episode.awaits_group and ",
        "if ",
        "tests/sampler/test_group_scorers.py::test_the_live_reward_leaves_out_episodes_that_only_their_group_scores_until_it_did",
    ),
    Mutant(
        "answers: none in the reasoning",
        "sampler/core/episode/sampler.py",
        "extract_answer(last.answer_text, ",
        "extract_answer(last.text, ",
        "tests/sampler/test_answer_text.py::test_our_own_sampler_scores_what_stands_outside_of_reasoning",
    ),
    Mutant(
        "answers: none in reasoning that the prompt opened",
        "sampler/core/episode/dispatch.py",
        "            in_reasoning=message.in_reasoning,\n",
        "",
        "tests/sampler/test_answer_text.py::test_reasoning_that_the_prompt_opened_has_no_answer",
    ),
    Mutant(
        "answers: none in the reasoning of a returned text",
        "sampler/gateway/agent_episode.py",
        "scored.answer_text.strip() or None",
        "text.strip() or None",
        "tests/sampler/test_answer_text.py::test_a_text_that_an_agent_returns",
    ),
    Mutant(
        "scores: not beyond what float32 can square",
        "shared/scores.py",
        "    if number is None or abs(number) > LARGEST_SCORE:\n",
        "    if number is None:\n",
        "tests/sampler/test_usable_scores.py::test_what_the_trainer_cannot_use_fails_the_episode_and_never_the_sampler",
    ),
    Mutant(
        "advantages: unequal scores have some",
        "sampler/core/settlement/advantages.py",
        "    if not SMALLEST < largest < LARGEST:\n        return None\n",
        "",
        "tests/sampler/test_usable_scores.py::test_unequal_scores_never_have_no_advantage",
    ),
    Mutant(
        "task files: numbers keep their digits",
        "shared/tasks/lines.py",
        '    if _has_fraction(values.get("answer")):',
        "    if False:",
        "tests/shared/test_exact_numbers.py::test_a_number_of_a_task_file_is_an_exact_decimal",
    ),
    Mutant(
        "task files: a comparing scorer needs an answer",
        "shared/tasks/checks.py",
        "            yield from self._answer_problems(payload)\n",
        "",
        "tests/shared/test_task_checks.py::test_a_comparing_scorer_and_no_answer_is_an_error",
    ),
    Mutant(
        "math: what is not read to its end has no reading",
        "sampler/bundled_scorers/maths/grammar.py",
        "    parser.require_end()\n",
        "",
        "tests/sampler/test_math_verdicts.py::test_no_wrong_answer_is_called_right_and_nearly_no_right_one_wrong",
    ),
    Mutant(
        "math: numbers are compared exactly",
        "sampler/bundled_scorers/maths/terms.py",
        "        return a == b\n",
        "        return abs(a - b) < Fraction(1, 10**6)\n",
        "tests/sampler/test_math_verdicts.py::test_decimals_are_compared_exactly",
    ),
    Mutant(
        "math: a sentence with a word that changes the number has none",
        "sampler/bundled_scorers/maths/texts.py",
        " & DENIED\n",
        " & set()\n",
        "tests/sampler/test_math_verdicts.py::test_no_wrong_answer_is_called_right_and_nearly_no_right_one_wrong",
    ),
)
