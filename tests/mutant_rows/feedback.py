"""Protections of scores that come later."""

from tests.mutant_rows.mutant import Mutant

FEEDBACK = "tests/shared/test_feedback.py"
LATER_SCORES = "tests/sampler/test_later_scores.py"

MUTANTS = (
    Mutant(
        "feedback: only an episode that waits takes it",
        "shared/store/feedback.py",
        '                {"$eq": ["$$s.status", SlotStatus.WAITING]},\n                {"$gt"',
        '                {"$gt"',
        f"{FEEDBACK}::test_a_given_score_is_not_changed_while_another_episode_of_the_group_waits",
    ),
    Mutant(
        "feedback: only before the deadline",
        "shared/store/feedback.py",
        '                {"$gt": ["$$s.free_at", NOW]},\n',
        "",
        f"{FEEDBACK}::test_at_the_deadline_the_episode_gets_the_scorers_score_or_fails",
    ),
    Mutant(
        "feedback: of a turn only the first",
        "shared/store/feedback.py",
        '                {"$not": {"$in": [literal(feedback.turn), turns]}},\n',
        "",
        f"{FEEDBACK}::test_feedback_that_is_given_again_changes_nothing_and_another_score_is_refused",
    ),
    Mutant(
        "feedback: for the record that the slot names",
        "shared/store/feedback.py",
        '                {"$eq": ["$$s.record_id", literal(record_id)]},\n',
        "",
        f"{FEEDBACK}::test_feedback_scores_no_other_episode_of_its_group",
    ),
    Mutant(
        "feedback: a deadline ends only what is overdue",
        "shared/store/feedback.py",
        ', {"$lte": ["$$s.free_at", NOW]}]}',
        "]}",
        f"{FEEDBACK}::test_a_deadline_ends_only_the_episodes_whose_own_it_is",
    ),
    Mutant(
        "feedback: a record that does not wait is not moved",
        "shared/store/feedback.py",
        '{"_id": slot.record_id, "status": RecordStatus.COMPLETED.value}',
        '{"_id": slot.record_id}',
        f"{LATER_SCORES}::test_settlement_writes_the_record_of_feedback_whose_process_was_killed",
    ),
    Mutant(
        "feedback: the record of a killed process follows at the settlement",
        "sampler/core/settlement/settle.py",
        "    await store.feedback.write_scores(task)  # where",
        "    # where",
        f"{LATER_SCORES}::test_settlement_writes_the_record_of_feedback_whose_process_was_killed",
    ),
    Mutant(
        "feedback: samplers end what is overdue",
        "sampler/core/settlement/settle.py",
        "(overdue := await store.feedback.end_overdue(policy)) is not None:",
        "(overdue := None) is not None:",
        f"{LATER_SCORES}::test_without_feedback_the_deadline_ends_the_wait_and_the_group_is_settled",
    ),
    Mutant(
        "feedback: an episode that waits holds its group",
        "shared/store/pipelines.py",
        "[SlotStatus.SCORED, SlotStatus.FAILED]]}}\n",
        "[SlotStatus.SCORED, SlotStatus.FAILED, SlotStatus.WAITING]]}}\n",
        f"{FEEDBACK}::test_an_episode_that_waits_holds_no_lease_and_is_not_played_again",
    ),
    Mutant(
        "feedback: a cancellation after the wait began",
        "shared/store/tasks.py",
        "PLAYED_TO_THE_END = (SlotStatus.WAITING, SlotStatus.SCORED)",
        "PLAYED_TO_THE_END = (SlotStatus.SCORED,)",
        f"{LATER_SCORES}::test_a_cancellation_after_the_wait_began_leaves_the_episode_waiting",
    ),
    Mutant(
        "feedback: held-out episodes never wait",
        "sampler/core/episode/scoring.py",
        "    if sampler.task.split != TRAIN_SPLIT:\n        return None\n",
        "",
        f"{LATER_SCORES}::test_held_out_episodes_do_not_wait",
    ),
    Mutant(
        "feedback: no number but a finite one",
        "shared/documents/feedback.py",
        "strict=True, allow_inf_nan=False",
        "strict=True",
        f"{FEEDBACK}::test_feedback_that_is_no_finite_number_or_of_no_turn_is_refused",
    ),
)
