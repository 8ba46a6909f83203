"""Protections of the mismatch by engine."""

from tests.mutant_rows.mutant import Mutant

MISMATCH = "tests/shared/test_engine_mismatch.py"

MUTANTS = (
    Mutant(
        "mismatch by engine: one that lags on purpose is not off",
        "shared/engine_mismatch.py",
        "if one.mismatch > limit and one.staleness <= age + OLDER_STEPS:",
        "if one.mismatch > limit:",
        f"{MISMATCH}::test_an_engine_is_off_if_it_is_far_from_the_others",
    ),
    Mutant(
        "mismatch by engine: few tokens prove nothing",
        "shared/engine_mismatch.py",
        "if not tokens or one.tokens < FEWEST_TOKENS:",
        "if not tokens:",
        f"{MISMATCH}::test_an_engine_is_off_if_it_is_far_from_the_others",
    ),
    Mutant(
        "mismatch by engine: what moves all engines is no fault of one",
        "shared/engine_mismatch.py",
        "limit = max(FEWEST_NATS, FACTOR * mean)",
        "limit = FEWEST_NATS",
        f"{MISMATCH}::test_an_engine_is_off_if_it_is_far_from_the_others",
    ),
    Mutant(
        "mismatch by engine: parts of a reply have their own engine",
        "trainer/trees/tree.py",
        "if len(counts) > 1:",
        "if False:",
        "tests/trainer/test_tree.py::test_every_entry_has_the_engine_that_sampled_its_token",
    ),
    Mutant(
        "mismatch by engine: its tokens are those of the reply",
        "shared/tokens/flatten.py",
        "if dispatch.engines and sum(count for _, count in dispatch.engines) != len(output):",
        "if False:",
        "tests/shared/test_flatten.py::test_the_engine_of_a_reply_and_of_each_part_of_one_goes_with_its_tokens",
    ),
)
