"""Protections of the verbs whose callers share a command, and of what bounds a claim and a look at the stream."""

from tests.mutant_rows.mutant import Mutant

BATCHED = "tests/shared/test_batched_verbs.py"
LOOKS = "tests/shared/test_looks.py"
SETTLED = "tests/sampler/test_settled_together.py"

MUTANTS = (
    Mutant(
        "slots that a process has not started when it ends are free at once",
        "sampler/core/service/service.py",
        "            for claim in unstarted:  # this process ends\n                await self._give_back(claim)\n",
        "            pass\n",
        "tests/sampler/test_claimed_together.py::"
        "test_a_process_that_ends_between_two_starts_frees_the_slots_that_it_has_not_started",
    ),
    Mutant(
        "a slot without its lease is refused among others that finish",
        "shared/store/slot_ends.py",
        "(await self._tasks.bulk_write(updates, ordered=False)).matched_count == len(ends):",
        "(await self._tasks.bulk_write(updates, ordered=False)).matched_count:",
        f"{BATCHED}::test_of_slots_that_are_finished_together_the_one_without_its_lease_is_refused",
    ),
    Mutant(
        "a record is not moved against its state among others that move",
        "shared/store/records.py",
        "if done.matched_count == len(moves):",
        "if done.matched_count:",
        f"{BATCHED}::test_of_records_that_move_together_only_the_illegal_one_is_refused",
    ),
    Mutant(
        "a claim leases no more slots than it was asked for",
        "shared/store/slots.py",
        '"in": "$$s.traj_id"}}, most]}',
        '"in": "$$s.traj_id"}}, 1000]}',
        f"{BATCHED}::test_a_claim_of_several_slots_leases_those_of_one_group",
    ),
    Mutant(
        "a claim passes by groups that are played elsewhere without reading them",
        "shared/store/tasks.py",
        "change, order=CLAIM_ORDER)",
        "change)",
        f"{LOOKS}::test_a_claim_reads_none_of_the_groups_that_are_played_elsewhere",
    ),
    Mutant(
        "a group that stays incomplete is not read at every look",
        "shared/store/record_data.py",
        "        if passed_over := incomplete.passed_over():",
        "        if passed_over := []:",
        f"{LOOKS}::test_a_group_that_stays_incomplete_is_not_read_by_every_query",
    ),
    Mutant(
        "a group that was incomplete a moment ago is read again",
        "shared/store/incomplete_groups.py",
        "if one.read_at - one.since >= UNCHANGED_S and now",
        "if now",
        f"{LOOKS}::test_a_group_that_grows_is_read_by_every_query",
    ),
    Mutant(
        "a settler has no group of another's claim",
        "shared/store/settlements.py",
        '"status": TaskStatus.COMPLETED.value, "settler": worker}',
        '"status": TaskStatus.COMPLETED.value}',
        f"{SETTLED}::test_of_settlers_that_claim_the_same_groups_at_once_each_has_its_own",
    ),
    Mutant(
        "a claim of settlements leases no group that has a settler",
        "shared/store/settlements.py",
        "among | due_for_settlement(policy, left, rules)",
        "among",
        f"{SETTLED}::test_a_claim_whose_answer_was_lost_finds_its_groups_again_and_no_other_does",
    ),
    Mutant(
        "what others have just completed is left to them",
        "shared/store/slots.py",
        "    if completed_s:\n",
        "    if completed_s < 0:\n",
        f"{SETTLED}::test_a_process_does_not_claim_what_another_has_just_completed",
    ),
    Mutant(
        "a settlement that knows its records still queries for those of lost attempts",
        "sampler/core/settlement/settle.py",
        "slot.attempt == 1 and ",
        "",
        f"{SETTLED}::test_the_record_of_a_lost_attempt_is_abandoned_with_its_group",
    ),
    Mutant(
        "the next epoch is skipped in the command that ends the settlement",
        "shared/store/tasks.py",
        "[finish] if change is None else [UpdateOne(*change), finish]",
        "[finish]",
        "tests/shared/test_curriculum.py::test_the_end_of_a_settlement_skips_the_next_epoch",
    ),
)
