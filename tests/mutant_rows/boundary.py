"""Protections of the boundary: what comes from outside is read as it is meant, or refused."""

from tests.mutant_rows.mutant import Mutant

VARIABLES = "tests/shared/test_environment_variables.py"
HELD = "tests/shared/test_held_values.py"
OUTSIDE = "tests/sampler/test_outside_data.py"
SAMPLED = "tests/sampler/gateway/test_sampled_characters.py"
TRAITS = "tests/sampler/test_template_traits.py"

MUTANTS = (
    Mutant(
        "variables: what is no variable is an error",
        "shared/configuration/environment_variables.py",
        "        if reference is None:\n",
        "        if reference is None:\n            return match[0]\n        if False:\n",
        f"{VARIABLES}::test_what_cannot_be_replaced_is_an_error",
    ),
    Mutant(
        "variables: a default may hold no variable",
        "shared/configuration/environment_variables.py",
        r"(?::-((?:(?!\$\{)[^}])*))?",
        r"(?::-([^}]*))?",
        f"{VARIABLES}::test_what_cannot_be_replaced_is_an_error",
    ),
    Mutant(
        "held values: a value without end is bounded",
        "shared/held_values.py",
        "        if depth >= MAX_DEPTH:\n",
        "        if False:\n",
        f"{HELD}::test_values_without_end_are_bounded",
    ),
    Mutant(
        "boundary: a sampled U+0000 comes back to the gateway",
        "sampler/gateway/bodies.py",
        "most_depth=MAX_BODY_DEPTH, with_nul=with_nul)",
        "most_depth=MAX_BODY_DEPTH)",
        f"{SAMPLED}::test_a_sampled_nul_is_sent_back_with_its_sampled_ids",
    ),
    Mutant(
        "boundary: names in other bodies have no U+0000",
        "sampler/gateway/app.py",
        "with_nul: bool = False",
        "with_nul: bool = True",
        "tests/sampler/gateway/test_external.py::test_who_has_no_token_claims_nothing_and_bad_bodies_are_refused",
    ),
    Mutant(
        "boundary: a reply with U+0000 is the same in the history",
        "shared/held_values.py",
        "if problem_of(one, with_nul=True) is None",
        "if problem_of(one) is None",
        f"{HELD}::test_messages_and_calls_that_can_be_held_stay_the_same_objects",
    ),
    Mutant(
        "boundary: arguments of a call have no U+0000",
        "sampler/gateway/bodies.py",
        "    problem = problem_of(value)\n",
        "    problem = problem_of(value, with_nul=True)\n",
        "tests/sampler/gateway/test_request_fuzz.py::test_a_refusal_has_the_path_of_the_field",
    ),
    Mutant(
        "held values: half a character becomes U+FFFD",
        "shared/held_values.py",
        'return storable(text).replace("\\0", "\\ufffd")',
        "return text",
        f"{HELD}::test_what_cannot_be_held_is_converted_in_one_way",
    ),
    Mutant(
        "held values: messages of a user's sampler are made whole",
        "sampler/core/episode/sampler.py",
        "messages = held_messages(await self.resources.images.of_request(new_messages))",
        "messages = list(new_messages)",
        f"{OUTSIDE}::test_texts_that_a_users_class_passes_on_are_made_whole",
    ),
    Mutant(
        "held values: details cost a score nothing",
        "sampler/core/episode/episode.py",
        "details: dict[str, Any] = held(",
        "details: dict[str, Any] = dict(",
        f"{OUTSIDE}::test_any_result_or_exception_of_a_scorer_is_a_score_or_a_recorded_failure",
    ),
    Mutant(
        "templates: a question stays in the prompt where a reply has no header",
        "sampler/core/rendering/shown_reply.py",
        "        return at + seen + message.start() - read",
        "        pass",
        f"{TRAITS}::test_a_question_before_a_reply_that_the_template_shows_without_its_header_stays_in_the_prompt",
    ),
    Mutant(
        "templates: instructions without a system role stand before the question",
        "sampler/core/rendering/turn_format.py",
        "        if not self.shows_system:\n",
        "        if False:\n",
        f"{TRAITS}::test_without_a_system_role_instructions_stand_before_the_question",
    ),
    Mutant(
        "a header of names that a client chose holds visible characters alone",
        "sampler/gateway/unused.py",
        '_NOT_IN_HEADERS = re.compile(r"[^!-~]")',
        '_NOT_IN_HEADERS = re.compile(r"[^\\n-~]")',
        "tests/sampler/gateway/test_unused.py::test_any_name_of_a_member_is_answered_and_adds_no_header",
    ),
    Mutant(
        "a tool's text is shown though what stands beside it is malformed",
        "sampler/core/tools/incoming.py",
        "return bare if _is_known(bare) else",
        "return",
        "tests/sampler/test_tool_results.py::test_an_answer_that_is_malformed_beside_its_content_is_an_answer",
    ),
)
