"""Protections of seats: who is never trained, who waits without blame, and whose engines answer whom."""

from tests.mutant_rows.mutant import Mutant

SEATS = "tests/sampler/actors/test_seats.py"
SCORES = "tests/sampler/actors/test_seat_scores.py"
ORDERS = "tests/sampler/actors/test_orders.py"
PINNED = "tests/sampler/actors/test_pinned_engines.py"

MUTANTS = (
    Mutant(
        "actors: an evaluation ends without a version that no engine serves",
        "sampler/core/episode/episode.py",
        "return sampler.task.at_version is not None",
        "return False",
        "tests/sampler/actors/test_seats.py::test_an_evaluation_does_not_wait_without_end_for_a_pinned_version",
    ),
    Mutant(
        "actors: a pinned, frozen or API turn is no policy's data",
        "sampler/core/settlement/settle.py",
        "            if trains(policy):  # else",
        "            if policy:  # else",
        f"{SEATS}::test_only_the_turns_of_an_actor_without_at_are_trained",
    ),
    Mutant(
        "actors: an API turn is not trained as the policy's own",
        "sampler/core/settlement/settle.py",
        "            policy = dispatch.policy or task.policy\n            if trains(policy):  # else",
        "            policy = (dispatch.policy or '').removeprefix('model:judge-api') or task.policy\n"
        "            if policy:  # else",
        f"{SEATS}::test_an_api_model_takes_a_seat_with_failover_and_is_recorded_and_never_trained",
    ),
    Mutant(
        "actors: a turn of fixed weights has another policy than the trained one",
        "shared/documents/actors.py",
        "return str(self.policy) if self.at is None else",
        "return str(self.policy) if self.at != 40 else",
        f"{SEATS}::test_only_the_turns_of_an_actor_without_at_are_trained",
    ),
    Mutant(
        "actors: only engines of a pinned actor's version answer it",
        "sampler/core/episode/resources.py",
        "replace(client, pool=self.every_version[policy], version=version)",
        "replace(client, pool=self.every_version[policy])",
        f"{SEATS}::test_a_version_that_goes_away_in_the_middle_costs_no_failure",
    ),
    Mutant(
        "actors: a version that goes away in the middle costs no failure",
        "sampler/actors/actor_sampler.py",
        "            if version is None:\n",
        "            if True:\n",
        f"{SEATS}::test_a_version_that_goes_away_in_the_middle_costs_no_failure",
    ),
    Mutant(
        "actors: a pinned turn is sampled by its version alone",
        "sampler/actors/actor_sampler.py",
        "if version is not None and (others :=",
        "if False and (others :=",
        f"{SEATS}::test_a_pinned_turn_of_several_versions_is_played_again_without_a_failure",
    ),
    Mutant(
        "actors: a slot whose version no engine serves has no record, and is claimed again later",
        "sampler/actors/actor_sampler.py",
        "        if await self.resources.every_version[policy].is_up(version):\n",
        "        if True:\n",
        f"{SEATS}::test_a_pinned_actor_waits_without_blame_and_without_a_record_while_no_engine_serves_its_version",
    ),
    Mutant(
        "actors: a released slot whose version is away is not claimed at once",
        "shared/store/tasks.py",
        '"free_at": after(delay_s) if delay_s else NOW',
        '"free_at": NOW',
        f"{SEATS}::test_a_pinned_actor_waits_without_blame_and_without_a_record_while_no_engine_serves_its_version",
    ),
    Mutant(
        "actors: an engine of one version answers no other turns",
        "sampler/core/engines/pool/engines.py",
        " and s.serve_version is None]",
        "]",
        f"{PINNED}::test_only_pinned_actors_use_an_engine_of_one_version",
    ),
    Mutant(
        "actors: an engine does not load a pinned version that was withdrawn",
        "sampler/engine/keeper/target.py",
        "stored.withdrawn_to is not None:\n            raise",
        "False:\n            raise",
        f"{PINNED}::test_a_pinned_version_is_not_loaded_once_its_files_are_or_will_be_deleted",
    ),
    Mutant(
        "actors: an engine does not load a pinned version that is pruned",
        "sampler/engine/keeper/target.py",
        "stored.version == target.version and stored.pruned:",
        "False:",
        f"{PINNED}::test_a_pinned_version_is_not_loaded_once_its_files_are_or_will_be_deleted",
    ),
    Mutant(
        "actors: a policy whose actors are all fixed does not hold up admission",
        "shared/rules/run_rules.py",
        "if policy in frozen or never_learns(policy)]",
        "if policy in frozen]",
        f"{PINNED}::test_admission_waits_only_for_trainers_of_policies_with_a_trained_actor",
    ),
    Mutant(
        "actors: the trainer keeps the files of a version that has an engine of its own",
        "trainer/publishing/publish.py",
        "{*awaited, *pinned}",
        "awaited",
        "tests/trainer/test_pruning.py::test_pruning_spares_the_version_of_an_engine_for_it_alone",
    ),
    Mutant(
        "actors: self-play compares each seat with the same seat",
        "sampler/core/settlement/shares.py",
        "    if seats.keys() <= {None}:\n",
        "    if True:\n",
        f"{SCORES}::test_each_seats_turns_are_compared_with_the_same_seats_of_the_group",
    ),
    Mutant(
        "actors: turns of a seat that the rules dropped have no loss",
        "shared/tokens/flatten.py",
        " and d.id not in context",
        "",
        f"{SCORES}::test_a_seat_whose_scores_do_not_differ_is_context_for_the_other",
    ),
    Mutant(
        "actors: every attempt at a slot has the same order",
        "sampler/actors/seating.py",
        'key=f"{claim.task.id}:{claim.traj_id}"',
        "key=claim.record_id",
        f"{ORDERS}::test_every_attempt_at_a_slot_has_the_same_order_and_slots_differ",
    ),
    Mutant(
        "actors: drafts do not hear each other, and the last hears all",
        "sampler/actors/parallel_sampler.py",
        'thread=f"{last}#{len(drafters) + 1}"',
        'thread=f"{last}#1"',
        f"{ORDERS}::test_drafts_do_not_hear_each_other_and_the_last_hears_all",
    ),
    Mutant(
        "actors: the league reads no more than its limit",
        "shared/store/questions.py",
        '.sort([("finished_at", -1)]).limit(limit).to_list()',
        '.sort([("finished_at", -1)]).to_list()',
        "tests/tandem/test_league.py::test_no_more_records_are_read_than_the_limit",
    ),
)
