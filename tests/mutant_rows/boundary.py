"""Protections of the boundary: what comes from outside is read as it is meant, or refused."""

from tests.mutant_rows.mutant import Mutant

VARIABLES = "tests/sampler/test_environment_variables.py"
TRAITS = "tests/sampler/test_template_traits.py"

MUTANTS = (
    Mutant(
        "variables: what is no variable is an error",
        "sampler/environment_variables.py",
        "        if found is None:\n",
        "        if found is None:\n            return match[0]\n        if False:\n",
        f"{VARIABLES}::test_what_cannot_be_replaced_is_an_error",
    ),
    Mutant(
        "variables: a default may hold no variable",
        "sampler/environment_variables.py",
        r"(?::-((?:(?!\$\{)[^}])*))?",
        r"(?::-([^}]*))?",
        f"{VARIABLES}::test_what_cannot_be_replaced_is_an_error",
    ),
    Mutant(
        "templates: a question stays in the prompt where a reply has no header",
        "sampler/rendering/context.py",
        "            return at + seen + message.start() - read",
        "            pass",
        f"{TRAITS}::test_a_question_before_a_reply_that_the_template_shows_without_its_header_stays_in_the_prompt",
    ),
    Mutant(
        "templates: instructions without a system role stand before the question",
        "sampler/rendering/turn_format.py",
        "        if not self.shows_system:\n",
        "        if False:\n",
        f"{TRAITS}::test_without_a_system_role_instructions_stand_before_the_question",
    ),
)
