"""Mutants of the audit: what makes it fast, and what it examines since an earlier one."""

from tests.mutant_rows.mutant import Mutant

DIGESTS, SINCE = "tests/tandem/test_audit_digests.py", "tests/tandem/test_audit_since.py"
WHOLE, SCALE = "tests/tandem/test_audit.py", "tests/tandem/test_audit_scale.py"

MUTANTS = (
    Mutant(
        "audit: a tree is settlement's if its digest is",
        "scripts/tandem/audit/tokens.py",
        "        summary.digest == data.digest\n        and ",
        "        ",
        f"{DIGESTS}::test_a_changed_dispatch_is_found_as_by_the_comparison_of_tokens",
    ),
    Mutant(
        "audit: chains below a token are in the order of the tree",
        "scripts/tandem/audit/digests.py",
        "key=lambda k: (-chains[k].offset, k)",
        "key=lambda k: (chains[k].offset, k)",
        f"{DIGESTS}::test_the_digest_of_every_tree_is_settlements",
    ),
    Mutant(
        "audit: a truncation that is no number is compared token by token",
        "scripts/tandem/audit/digests.py",
        "drawn_from is None or ",
        "",
        f"{DIGESTS}::test_a_changed_dispatch_is_found_as_by_the_comparison_of_tokens",
    ),
    Mutant(
        "audit: training data whose task is gone is examined",
        "shared/store/stored.py",
        "streams = [self._opened(), _distinct_tasks(self._records), _distinct_tasks(self._data)]",
        "streams = [self._opened()]",
        f"{WHOLE}::test_data_of_a_task_that_was_never_opened_or_is_gone_is_examined",
    ),
    Mutant(
        "audit: every step of a long run is compared",
        "scripts/tandem/audit/steps.py",
        "for start in range(0, len(numbers), STEPS_AT_ONCE):",
        "for start in range(0, len(numbers[:1]), STEPS_AT_ONCE):\n        numbers = numbers[:1]",
        f"{WHOLE}::test_the_audit_finds_a_group_that_was_trained_again_after_its_marks_were_lost",
    ),
    Mutant(
        "audit --since: a group that is seen late is examined",
        "scripts/tandem/audit/since.py",
        "position.settled_at - OVERLAP",
        "position.settled_at",
        f"{SINCE}::test_a_group_that_is_seen_after_one_that_was_settled_later_is_examined",
    ),
    Mutant(
        "audit --since: a group is examined once",
        "scripts/tandem/audit/since.py",
        "if group.task not in recent:",
        "if True:",
        f"{SINCE}::test_a_settled_group_is_examined_once_and_a_new_one_at_the_next_audit",
    ),
    Mutant(
        "audit --since: a violation is found again",
        "scripts/tandem/audit/since.py",
        "{*settled, *position.again, ",
        "{*settled, ",
        f"{SINCE}::test_a_violation_is_found_again_until_it_is_repaired",
    ),
    Mutant(
        "audit --since: a mark that is wrong is found again",
        "scripts/tandem/audit/marks.py",
        "return reached if part.ok else position",
        "return reached",
        f"{SINCE}::test_a_mark_that_is_not_the_records_is_found_in_a_new_step_until_it_is_repaired",
    ),
    Mutant(
        "audit --since: what a resume has undone is compared",
        "scripts/tandem/audit/marks.py",
        "min([position.step, *starts[position.starts :], ",
        "min([position.step, ",
        f"{SINCE}::test_a_mark_that_a_resume_did_not_undo_is_found",
    ),
    Mutant(
        "audit --since: groups of undone steps are compared",
        "shared/store/stored_steps.py",
        'tasks = {task async for document in reported for task, _ in document["groups"]}',
        "tasks = {task async for document in reported for task, _ in ()}",
        f"{SINCE}::test_a_mark_that_a_resume_did_not_undo_is_found",
    ),
    Mutant(
        "audit --since: marks that a new trainer has yet to undo are none",
        "scripts/tandem/audit/marks.py",
        "return starts[-1] if reported is None else reported",
        "return 2**62 if reported is None else reported",
        f"{SINCE}::test_marks_that_a_new_trainer_has_yet_to_undo_are_no_violation",
    ),
    Mutant(
        "audit --since: earlier steps that trained a group count",
        "scripts/tandem/audit/marks.py",
        "        expect_few(report, policy, steps_of, limit)\n",
        "",
        f"{SINCE}::test_a_group_that_an_earlier_step_trained_too_is_found",
    ),
    Mutant(
        "audit --since: a step beyond the newest weights is compared again",
        "scripts/tandem/audit/marks.py",
        ", scope.newest[policy]])",
        "])",
        f"{SINCE}::test_a_step_beyond_the_newest_weights_is_compared_again",
    ),
    Mutant(
        "audit --since: the position of another run is refused",
        "scripts/tandem/audit/position.py",
        "or self.created_at != run.created_at",
        "",
        f"{SINCE}::test_the_file_has_the_position_and_another_runs_is_refused",
    ),
    Mutant(
        "audit: its processes end with it",
        "scripts/tandem/audit/processes.py",
        "    os._exit(1)\n",
        "    pass\n",
        f"{SCALE}::test_a_process_of_an_audit_ends_with_its_parent_also_if_that_is_killed",
    ),
)
