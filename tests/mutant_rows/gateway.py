"""Protections of the recording gateway: requests, replies and conversations."""

from tests.mutant_rows.mutant import Mutant

DRIFT = "tests/sampler/gateway/test_drift.py"
STREAMS = "tests/sampler/gateway/test_streams.py"
RESPONSES = "tests/sampler/gateway/test_responses.py"
GOOGLE = "tests/sampler/gateway/test_google_generate.py"
TOGETHER = "tests/shared/test_together.py"

MUTANTS = (
    Mutant(
        "headers without an end",
        "shared/http/protocol.py",
        "from uvicorn.protocols.http.h11_impl import H11Protocol",
        "from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as H11Protocol",
        "tests/shared/test_http_server.py::test_a_request_whose_head_or_trailer_does_not_end_is_refused",
    ),
    Mutant(
        "a fast engine wakes the gateway seldom",
        "sampler/core/engines/client/engine_client.py",
        "interval_of(most, self._tokens_per_s.get(url, 0.0))",
        "interval_of(most)",
        "tests/sampler/test_streamed_answers.py::test_a_fast_engine_is_asked_for_fewer_events",
    ),
    Mutant(
        "a request that offers another protocol keeps its body",
        "shared/http/protocol.py",
        "from uvicorn.protocols.http.h11_impl import H11Protocol",
        "from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as H11Protocol",
        "tests/shared/test_http_server.py::test_a_client_that_offers_another_protocol_is_answered_in_this_one",
    ),
    Mutant(
        "nothing is sent to a client that left meanwhile",
        "shared/http/gathering.py",
        "if whole and not self._transport.is_closing():",
        "if whole:",
        "tests/shared/test_http_server.py::test_a_client_that_left_before_its_response_was_sent_is_no_error",
    ),
    Mutant(
        "what is known together is sent in one piece",
        "shared/http/gathering.py",
        "            self._loop.call_soon(self._flush)\n        self._parts.append(data)",
        "            self._loop.call_soon(self._flush)\n        self._parts.append(data)\n        self._flush()",
        "tests/shared/test_http_server.py::test_a_response_is_sent_in_one_piece",
    ),
    Mutant(
        "a request of an ended attempt is told from those sent with it",
        "shared/store/sessions.py",
        "return Opened.OPEN if dispatch.record in played else Opened.ENDED",
        "return Opened.OPEN",
        f"{TOGETHER}::test_requests_and_replies_of_many_attempts_share_commands",
    ),
    Mutant(
        "a reply that was closed before is told from those sent with it",
        "shared/store/sessions.py",
        "return [(await self._save_replies([each]))[0] for each in dispatches]",
        "return [False] * len(dispatches)",
        f"{TOGETHER}::test_requests_and_replies_of_many_attempts_share_commands",
    ),
    Mutant(
        "an error of one caller is not that of those who share its command",
        "shared/store/together.py",
        "if len(batch) > 1 and not (isinstance(exc, PyMongoError) and is_outage(exc)):",
        "if False:",
        f"{TOGETHER}::test_an_error_that_one_caller_caused_is_that_callers_alone",
    ),
    Mutant(
        "an earlier response is not known",
        "sampler/gateway/responses_request.py",
        "    for name in _UNKNOWN_HERE:",
        "    for name in ():",
        f"{RESPONSES}::test_what_is_not_stored_here_is_refused_in_the_sdks_own_classes",
    ),
    Mutant(
        "items of one reply are one message",
        "sampler/gateway/responses_request.py",
        'if reply is None or (kind == "reasoning" and len(reply) > 1):',
        "if True:",
        f"{RESPONSES}::test_a_loop_of_the_sdk_is_one_conversation_of_sampled_ids",
    ),
    Mutant(
        "a call of a tool in a namespace names both",
        "sampler/gateway/responses.py",
        "if space not in request.namespaces:",
        "if True:",
        f"{RESPONSES}::test_tools_in_namespaces_are_called_by_both_names_and_tools_of_the_vendor_are_left_out",
    ),
    Mutant(
        "tools that only a vendor can run are no error",
        "sampler/gateway/responses_request.py",
        "    elif left_out([kind]):",
        "    elif False:",
        "tests/sampler/gateway/test_transcripts.py::test_a_recorded_agent_is_one_conversation",
    ),
    Mutant(
        "a long reply in a stream is decoded once",
        "sampler/core/rendering/turn.py",
        "begin = max(0, count - _OVERLAP_IDS)",
        "begin = 0",
        "tests/sampler/test_heard.py::test_each_text_is_that_of_all_ids_so_far_and_long_replies_are_not_decoded_anew",
    ),
    Mutant(
        "a response without an id answers the call with its name",
        "sampler/gateway/google_request.py",
        'if given in ("", one[0]) and',
        "if given == one[0] and",
        f"{GOOGLE}::test_a_loop_is_one_conversation_of_sampled_ids",
    ),
    Mutant(
        "a stream has its text while the engine samples",
        "sampler/core/episode/sampler.py",
        "on_ids=token_listener,",
        "on_ids=None,",
        f"{STREAMS}::test_text_comes_while_the_engine_samples",
    ),
    Mutant(
        "a stream never makes two replies one",
        "sampler/gateway/streaming.py",
        "if not partial.text.startswith(self._text):",
        "if False:",
        f"{STREAMS}::test_an_engine_that_dies_in_a_stream_never_makes_two_replies_one",
    ),
    Mutant(
        "a client that leaves a stream aborts its request",
        "sampler/gateway/app.py",
        "            if gone.done():\n                return",
        "            if gone.done():\n                stream.broken = False",
        f"{STREAMS}::test_a_client_that_leaves_in_the_middle_of_a_stream_aborts_its_request",
    ),
    Mutant(
        "a reply in another history keeps its sampled ids",
        "sampler/gateway/matching.py",
        "reply = self._after.get((lines[at], words)) or self._saying.get((policy, words))",
        "reply = None",
        f"{DRIFT}::test_another_history_is_another_branch_in_which_sampled_replies_keep_their_ids",
    ),
    Mutant(
        "a conversation with other tools is another thread",
        "sampler/gateway/matching.py",
        "if thread.tools == tools_hash and",
        "if",
        f"{DRIFT}::test_parallel_sub_agents_have_threads_with_their_own_tools",
    ),
    Mutant(
        "another system prompt is another conversation",
        "sampler/gateway/matching.py",
        "return common > 0 and max(len(ours), len(theirs)) - common <= self.head_lines",
        "return True",
        f"{DRIFT}::test_a_system_prompt_whose_head_changes_is_the_same_conversation_if_the_settings_say_so",
    ),
    Mutant(
        "a client that leaves aborts its request",
        "sampler/gateway/app.py",
        "        if gone.done() or stream is None:\n            asking.cancel()",
        "        if gone.done() or stream is None:\n            asking.done()",
        "tests/sampler/gateway/test_chat_completions.py::test_a_client_that_leaves_aborts_its_request_and_may_go_on",
    ),
)
