"""Bounds of one attempt's requests, and the ends that they respect."""

from tests.mutant_rows.mutant import Mutant

BOUNDS = "tests/sampler/gateway/test_request_bounds.py"

MUTANTS = (
    Mutant(
        "a request with another body is another request",
        "sampler/gateway/app.py",
        "    identity.update(raw)\n",
        "",
        f"{BOUNDS}::test_another_body_with_the_same_idempotency_key_is_another_request",
    ),
    Mutant(
        "requests of one attempt at once are bounded",
        "sampler/gateway/session.py",
        "if len(self._running) >= MAX_AT_ONCE:",
        "if False:",
        f"{BOUNDS}::test_so_many_requests_of_an_attempt_run_at_once_and_no_more",
    ),
    Mutant(
        "replies for repeated requests are bounded",
        "sampler/gateway/session.py",
        "if len(self._replayed) >= MAX_REPLAYED:",
        "if False:",
        f"{BOUNDS}::test_replies_are_kept_for_so_many_repeated_requests_alone",
    ),
    Mutant(
        "a score whose body ends after the attempt is refused",
        "sampler/gateway/session.py",
        '            raise GatewayError(Problem.NO_KEY, "the attempt has ended")\n        score = checked',
        "            pass\n        score = checked",
        f"{BOUNDS}::test_a_score_whose_body_ends_after_the_attempt_is_refused",
    ),
    Mutant(
        "a score after an attempt's end at another process is refused",
        "sampler/gateway/attempt.py",
        "            if not await sessions.post_score(record, score):\n",
        "            if not await sessions.post_score(record, score) and False:\n",
        f"{BOUNDS}::test_a_score_after_an_attempt_was_finished_at_another_gateway_is_refused",
    ),
    Mutant(
        "a turn's score after an attempt's end at another process is refused",
        "sampler/gateway/attempt.py",
        "            if await sessions.over([record]):\n                raise GatewayError(Problem.NO_KEY, ENDED)\n",
        "",
        f"{BOUNDS}::test_a_score_after_an_attempt_was_finished_at_another_gateway_is_refused",
    ),
    Mutant(
        "a relay's connections are bounded",
        "sampler/gateway/relay.py",
        "if len(self._running) >= MAX_CONNECTIONS:",
        "if False:",
        f"{BOUNDS}::test_a_relay_has_so_many_connections_and_closes_those_above",
    ),
    Mutant(
        "a session's user has no other groups",
        "shared/sandbox/confinement.py",
        "        os.setgroups([])\n",
        "",
        "tests/shared/sandbox/test_groups.py::test_a_session_has_no_group_of_the_gateways",
    ),
)
