"""Protections of the second line: what nobody foresaw ends no process that plays or trains."""

from tests.mutant_rows.mutant import Mutant

UNFORESEEN = "tests/sampler/test_unforeseen.py"
STEPS = "tests/trainer/test_unforeseen_steps.py"
IN_EPISODE = f"{UNFORESEEN}::test_a_bug_in_any_stage_of_an_episode_fails_its_own_slot"
ANY_ERROR = f"{UNFORESEEN}::test_whatever_is_raised_is_one_line_and_a_bounded_traceback"
SET_ASIDE = f"{UNFORESEEN}::test_a_task_with_max_failures_bugs_is_set_aside_and_shown_before_its_slots_are_used_up"

MUTANTS = (
    Mutant(
        "second line: a bug of an episode stays with its slot",
        "sampler/core/episode/episode.py",
        "        await fail_unforeseen(sampler, exc)\n",
        "        raise\n",
        IN_EPISODE,
    ),
    Mutant(
        "second line: what a bug broke does not keep the slot from being tried again",
        "sampler/core/episode/unforeseen.py",
        '        log.error("after a bug, %s was not written: %s", what, error_text(exc))\n',
        "        raise\n",
        IN_EPISODE,
    ),
    Mutant(
        "second line: a cancellation of something else is no stop of the process",
        "shared/unforeseen.py",
        "return task is None or task.cancelling() > 0",
        "return True",
        ANY_ERROR,
    ),
    Mutant(
        "second line: an error whose text raises has a line too",
        "shared/outside_text.py",
        "    except Exception as failure:",
        "    except KeyboardInterrupt as failure:",
        ANY_ERROR,
    ),
    Mutant(
        "second line: a score that is written outlives what comes after it",
        "sampler/core/episode/unforeseen.py",
        "        return await tasks.is_played_by(claim)",
        "        return False",
        f"{UNFORESEEN}::test_a_bug_after_the_score_leaves_the_score",
    ),
    Mutant(
        "second line: too many bugs set the task aside",
        "shared/store/slots.py",
        '{"$or": [IS_SET_ASIDE, {"$gte": [count, max_failures]}]}',
        "IS_SET_ASIDE",
        SET_ASIDE,
    ),
    Mutant(
        "second line: open slots of a task that is set aside fail",
        "shared/store/slots.py",
        '        {"$set": {"slots": {"$cond": [IS_SET_ASIDE, merge_slot(is_open, failed), "$slots"]}}},\n',
        "",
        SET_ASIDE,
    ),
    Mutant(
        "second line: a lost lease of a task that is set aside opens no slot",
        "shared/store/slots.py",
        '{"$or": [{"$gte": [failures, max_failures]}, IS_SET_ASIDE]}',
        '{"$gte": [failures, max_failures]}',
        f"{UNFORESEEN}::test_a_lost_lease_of_a_task_that_is_set_aside_opens_no_slot",
    ),
    Mutant(
        "second line: a bug of a settlement stays with its group",
        "sampler/core/service/settling.py",
        "            await fail_settlement(self._store, self._config, task, bug)\n",
        "            raise\n",
        f"{UNFORESEEN}::test_a_bug_in_any_stage_of_a_settlement_fails_that_settlement",
    ),
    Mutant(
        "second line: a settlement that always fails ends",
        "shared/store/unforeseen.py",
        "before + 1 >= max_failures",
        "False",
        f"{UNFORESEEN}::test_a_group_whose_settlement_always_fails_is_abandoned_and_others_are_settled",
    ),
    Mutant(
        "second line: the database ends the process, also out of a group",
        "shared/unforeseen.py",
        "return any(map(is_of_the_process, exc.exceptions))",
        "return False",
        f"{UNFORESEEN}::test_the_database_ends_the_process_also_out_of_a_group",
    ),
    Mutant(
        "second line: a group that cannot be read is set aside, whatever was raised",
        "trainer/data/reading.py",
        "            except Exception as exc:  # whatever",
        "            except FORESEEN as exc:  # whatever",
        f"{STEPS}::test_a_bug_in_reading_a_group_sets_the_group_aside",
    ),
    Mutant(
        "second line: a fault of the machine sets no data aside",
        "shared/unforeseen.py",
        "OF_THE_MACHINE = (OSError, MemoryError, ",
        "OF_THE_MACHINE = (",
        f"{STEPS}::test_a_fault_of_the_machine_sets_no_data_aside",
    ),
    Mutant(
        "second line: a bug in a step ends the trainer with its cause",
        "trainer/loop.py",
        "named_in_errors(step, parts.stream.borrowed_tasks):",
        "parts.status.waiting(step, parts.stream):",
        f"{STEPS}::test_a_bug_in_a_step_ends_the_trainer_with_its_cause_as_the_last_line",
    ),
)
