"""Protections against prompts that take long to encode."""

from tests.mutant_rows.mutant import Mutant

LONG = "tests/sampler/test_long_prompts.py"
BODIES = "tests/sampler/gateway/test_long_bodies.py"

MUTANTS = (
    Mutant(
        "a rendering that cannot fit is not encoded",
        "sampler/core/rendering/template.py",
        "        self.require_room(text, MARK_START + MARK_END)\n",
        "",
        f"{LONG}::test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded",
    ),
    Mutant(
        "a long prompt is encoded in a thread",
        "sampler/core/rendering/ahead.py",
        "    if is_long([messages, view.tools if restart or view.is_opening else ()]):\n",
        "    if False:\n",
        f"{LONG}::test_others_go_on_while_a_long_message_is_encoded",
    ),
    Mutant(
        "a long schema is encoded in a thread",
        "sampler/core/rendering/ahead.py",
        "view.tools if restart or view.is_opening else ()",
        "()",
        f"{LONG}::test_a_long_schema_of_a_tool_is_encoded_in_a_thread_too",
    ),
    Mutant(
        "what is only counted is encoded in a thread, too",
        "sampler/core/kinds/conversation.py",
        "        await self._sampler.encode_ahead(messages, restart=restart, thread=self._thread)\n",
        "",
        "tests/sampler/test_context_policies.py::test_long_results_are_encoded_in_threads",
    ),
    Mutant(
        "a tokenizer without a bound has one in characters",
        "sampler/core/rendering/template.py",
        "        least = len(text) // _HARDLY_CHARS if longest is None else ",
        "        least = ",
        f"{LONG}::test_a_tokenizer_without_a_bound_refuses_what_hardly_fits",
    ),
    Mutant(
        "a body without a place in the context is not read",
        "sampler/gateway/bodies.py",
        "    return MAX_BODY_BYTES if sees else min(MAX_BODY_BYTES, max(LEAST_BODY_BYTES, BYTES_PER_TOKEN * max_tokens))\n",
        "    return MAX_BODY_BYTES\n",
        f"{BODIES}::test_a_body_that_has_no_place_in_the_context_is_refused_unread",
    ),
    Mutant(
        "a refused body is a limit that the attempt met",
        "sampler/gateway/attempt.py",
        "Termination.LENGTH_LIMIT if error.is_limit else REFUSED",
        "REFUSED",
        f"{BODIES}::test_a_body_that_has_no_place_in_the_context_is_refused_unread",
    ),
    Mutant(
        "a long body is read in a thread",
        "sampler/gateway/app.py",
        " if num_bytes > LONG_BYTES else work()",
        " if False else work()",
        f"{BODIES}::test_others_are_served_while_many_messages_are_read",
    ),
    Mutant(
        "messages are as many as tokens at most",
        "sampler/gateway/app.py",
        "    count = len(chat.messages)\n",
        "    count = 0\n",
        f"{BODIES}::test_others_are_served_while_many_messages_are_read",
    ),
    Mutant(
        "a long text is encoded without Python's lock",
        "sampler/core/rendering/template.py",
        "        if len(text) < _LONG_CHARS:\n",
        "        if True:\n",
        f"{LONG}::test_others_go_on_while_a_long_message_is_encoded",
    ),
    Mutant(
        "a composing tokenizer's texts have fewer tokens",
        "sampler/core/rendering/longest.py",
        "            count //= _MOST_COMPOSED\n",
        "            pass\n",
        f"{LONG}::test_no_text_has_fewer_tokens_than_its_length_says",
    ),
    Mutant(
        "characters without a token do not count",
        "sampler/core/rendering/longest.py",
        "self.dropped + ignored",
        "ignored",
        f"{LONG}::test_no_text_has_fewer_tokens_than_its_length_says",
    ),
    Mutant(
        "the JSON of a prompt that does not go on is made anew",
        "sampler/core/rendering/view.py",
        "        if prompt.shared_length < len(self._encoded):\n",
        "        if False:\n",
        "tests/sampler/test_recorded_requests.py::test_random_threads_agree_with_plain_lists",
    ),
    Mutant(
        "each id of a thread's prompts is encoded once",
        "shared/tokens/encoded_ids.py",
        "ids[len(self.ids) :]",
        "ids[len(self.ids) * 0 :]",
        "tests/shared/test_encoded_ids.py::test_each_id_is_encoded_once",
    ),
)
