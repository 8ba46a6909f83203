"""Protections of a run's rules: what a group teaches is the same whoever settles it."""

from tests.mutant_rows.mutant import Mutant

RULES = "tests/sampler/test_run_rules.py"
REFUSED = "tests/sampler/test_run_rules_refused.py"
IN_FORCE = "sampler/core/settlement/current_rules.py"

MUTANTS = (
    Mutant(
        "rules: another setting is refused at start",
        IN_FORCE,
        "        self._compare(newest)\n",
        "",
        f"{REFUSED}::test_another_setting_is_refused_with_both_values_where_it_was_given_and_the_remedy",
    ),
    Mutant(
        "rules: a group keeps the number that it was opened with",
        "shared/store/slots.py",
        '{"$cond": [{"$eq": ["$status", TaskStatus.CREATED]}, rules, "$rules"]}',
        '{"$literal": rules}',
        f"{RULES}::test_a_group_is_settled_by_the_rules_that_it_was_opened_with",
    ),
    Mutant(
        "rules: an episode goes by the rules of its group",
        "sampler/core/service/ruled_resources.py",
        "return self._by_number.get(FIRST if task.rules is None else task.rules, self._base)",
        "return self._base",
        f"{RULES}::test_a_change_reaches_episodes_of_groups_that_are_opened_later_alone",
    ),
    Mutant(
        "rules: another chat template is refused at start",
        "sampler/core/settlement/declared_rules.py",
        'name in ("other_policies", "template_digest")',
        'name in ("other_policies",)',
        f"{REFUSED}::test_another_chat_template_is_refused_by_its_digest",
    ),
    Mutant(
        "rules: slots of groups whose rules a process cannot apply are left to others",
        "shared/store/slots.py",
        'return {} if rules is None else {"$or": [{"status": TaskStatus.CREATED.value}, settled_by(rules)]}',
        "return {}",
        f"{RULES}::test_episodes_of_rules_that_a_process_cannot_play_are_left_to_others_and_an_alarm_says_why",
    ),
    Mutant(
        "rules: groups of rules that a process cannot apply are left to others",
        "shared/store/slots.py",
        '    return {"rules": {"$in": [*rules, None] if FIRST in rules else list(rules)}}\n',
        "    return {}\n",
        f"{RULES}::test_rules_that_a_process_cannot_apply_stop_their_groups_there_and_an_alarm_says_why",
    ),
    Mutant(
        "rules: an edited number is not applied",
        "shared/documents/rules.py",
        "return self.digest == digest_of(",
        "return True or self.digest == digest_of(",
        f"{RULES}::test_rules_that_were_edited_or_deleted_are_not_applied",
    ),
    Mutant(
        "rules: a number that stands is never overwritten",
        "shared/store/rules.py",
        'insert_once(rules.to_mongo(), time="since")',
        '{"$set": {k: v for k, v in rules.to_mongo().items() if k != "_id"}}',
        f"{RULES}::test_of_two_that_write_a_number_at_once_the_first_one_counts",
    ),
)
