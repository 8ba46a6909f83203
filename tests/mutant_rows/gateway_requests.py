"""Protections of the gateway's readers of requests: nothing is ignored unseen, kept that cannot be stored, or called unasked."""

from tests.mutant_rows.mutant import Mutant

UNUSED = "tests/sampler/gateway/test_unused.py"
FUZZ = "tests/sampler/gateway/test_request_fuzz.py"
ENDS = "tests/sampler/gateway/test_reply_ends.py"
FORMAT = "tests/sampler/gateway/test_output_format.py"
PREFIX = "tests/sampler/gateway/test_prefix.py"
EXTERNAL = "tests/sampler/gateway/test_external.py"
REDACTION = "tests/shared/test_redaction.py"

MUTANTS = (
    Mutant(
        "members of inner objects are unused too",
        "sampler/gateway/fields.py",
        "            yield from one._unused()",
        "            yield from ()",
        f"{UNUSED}::test_a_member_that_no_reader_knows_is_unused_wherever_it_stands",
    ),
    Mutant(
        "names that a client chooses are bounded in an attempt",
        "sampler/gateway/unused.py",
        "counts[key if is_known else _PREFIX + MORE] += 1",
        "counts[key] += 1",
        f"{UNUSED}::test_names_that_a_client_chooses_are_bounded",
    ),
    Mutant(
        "what is stored at a vendor is missing here",
        "sampler/gateway/google_request.py",
        'if given.value("cachedContent"):',
        'if given.value("cachedContent") and False:',
        f"{UNUSED}::test_what_was_cached_at_the_vendor_is_missing_here",
    ),
    Mutant(
        "a body that cannot be stored is refused",
        "sampler/gateway/bodies.py",
        "problem = problem_of(parsed, most_depth=MAX_BODY_DEPTH, with_nul=with_nul)\n",
        "problem = None\n",
        f"{FUZZ}::test_any_value_in_any_place_is_taken_or_refused",
    ),
    Mutant(
        "arguments that cannot be stored are refused",
        "sampler/gateway/bodies.py",
        "    _require_storable(fields, name, value)\n    return value",
        "    return value",
        f"{FUZZ}::test_a_refusal_has_the_path_of_the_field",
    ),
    Mutant(
        "a reply to a request without tools makes no call",
        "sampler/core/episode/threads.py",
        "return parsed if may_call else without_calls(parsed, text)",
        "return parsed",
        f"{ENDS}::test_no_call_is_made_of_a_reply_to_a_request_that_allows_none",
    ),
    Mutant(
        "a stream tells nothing of a stop",
        "sampler/gateway/streaming.py",
        "_plain(begun, (*openings, *stops, THINK, END_THINK))",
        "_plain(begun, (*openings, THINK, END_THINK))",
        f"{ENDS}::test_what_a_stream_tells_is_never_taken_back",
    ),
    Mutant(
        "a demanded form of the answer is in the prompt",
        "sampler/gateway/output_format.py",
        "with_instruction(request.messages, instruction_of(demanded), template)",
        "request.messages",
        f"{FORMAT}::test_the_form_is_in_the_prompt_and_nothing_of_it_is_unused",
    ),
    Mutant(
        "the beginning of a reply is not lost behind it",
        "sampler/core/rendering/sampled_reply.py",
        'content = "" if alone else self.prefix + self.sentinels["content"]',
        'content = "" if alone else self.sentinels["content"]',
        f"{PREFIX}::test_of_every_family_a_beginning_is_continued_with_exact_ids_or_refused",
    ),
    Mutant(
        "an attempt whose slot another agent has gets no score",
        "sampler/gateway/attempt.py",
        "        if is_lost:\n",
        "        if False:\n",
        f"{EXTERNAL}::test_an_attempt_without_requests_is_lost_and_its_key_with_it",
    ),
    Mutant(
        "true is no score",
        "sampler/gateway/harness_api.py",
        'class _FeedbackBody(BaseModel, extra="forbid", strict=True):',
        'class _FeedbackBody(BaseModel, extra="forbid"):',
        f"{EXTERNAL}::test_who_has_no_token_claims_nothing_and_bad_bodies_are_refused",
    ),
    Mutant(
        "a password may break its URL",
        "shared/redaction.py",
        'begin = max(text.rfind("@", start.end(), limit) + 1, start.end())',
        "begin = start.end()",
        f"{REDACTION}::test_no_part_of_a_password_is_shown_of_a_url_that_nobody_named",
    ),
)
