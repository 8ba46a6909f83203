"""Protections against prompts that take long to encode."""

from tests.mutant_rows.mutant import Mutant

LONG = "tests/sampler/test_long_prompts.py"

MUTANTS = (
    Mutant(
        "a rendering that cannot fit is not encoded",
        "sampler/rendering/template.py",
        "        self.require_room(text, MARK_START + MARK_END)\n",
        "",
        f"{LONG}::test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded",
    ),
    Mutant(
        "a long prompt is encoded in a thread",
        "sampler/rendering/ahead.py",
        "        if is_long(messages):\n",
        "        if False:\n",
        f"{LONG}::test_others_go_on_while_a_long_message_is_encoded",
    ),
    Mutant(
        "a long text is encoded without Python's lock",
        "sampler/rendering/template.py",
        "        if len(text) < _LONG_CHARS:\n",
        "        if True:\n",
        f"{LONG}::test_others_go_on_while_a_long_message_is_encoded",
    ),
    Mutant(
        "a composing tokenizer's texts have fewer tokens",
        "sampler/rendering/longest.py",
        "            count //= _MOST_COMPOSED\n",
        "            pass\n",
        f"{LONG}::test_no_text_has_fewer_tokens_than_its_length_says",
    ),
    Mutant(
        "characters without a token do not count",
        "sampler/rendering/longest.py",
        "self.dropped + ignored",
        "ignored",
        f"{LONG}::test_no_text_has_fewer_tokens_than_its_length_says",
    ),
)
